"""Checkpoints: a run goes on, bit for bit, on other numbers of ranks, partitions and layouts."""

import os
import random
import resource
from collections import Counter

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import distdl
import distdl.nn as dnn
from support.blocks import grid
from support.ranks import job, raises_everywhere
from support.tensors import same_bits
from support.training import KINDS, Twins


def optimizer_of(model, name):
    options = {"SGD": {"momentum": 0.9}, "Adam": {"amsgrad": True}, "Rprop": {}, "NAdam": {}, "ASGD": {}}
    return getattr(torch.optim, name)(model.parameters(), lr=0.05, **options[name])


def trained(twins, name, steps=3):
    """An optimizer that has gone some steps."""
    optimizer = optimizer_of(twins.model, name)
    for step in range(steps):
        optimizer.zero_grad()
        twins.own_loss(step).backward()
        optimizer.step()
    return optimizer


def whole_states(model, optimizer, name):
    """The state of each parameter as the sequential optimizer has it, by mere load_sequential's counterpart."""
    keys = sorted({key for state in optimizer.state.values() for key, value in state.items() if value.dim() > 0})
    keys = sorted({key for some in job.allgather(keys) for key in some})
    states = {}
    kept = [parameter.detach().clone() for parameter in model.parameters()]
    for key in keys:
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.numel():
                    parameter.copy_(optimizer.state[parameter][key])
        states[key] = distdl.sequential_state_dict(model)
    with torch.no_grad():
        for parameter, before in zip(model.parameters(), kept, strict=True):
            parameter.copy_(before)
    return states


def assert_same_states(state, expected):
    if job.rank > 0:
        return
    assert list(state) == list(expected)
    for name, value in expected.items():
        assert same_bits(state[name], value), name


@pytest.mark.parametrize(("kind", "name"), [("owner", "Adam"), ("sharded", "SGD"), ("replicated", "NAdam")])
def test_a_run_goes_on_elsewhere(P_world, folder, kind, name):
    """Weights, buffers and states of optimizers are the same bits on another partition, layout and number of ranks."""
    twins = Twins(P_world, kind)
    optimizer = trained(twins, name)
    distdl.save(folder / "run.safetensors", twins.model, optimizer, epoch=3)
    expected = distdl.sequential_state_dict(twins.model)
    states = whole_states(twins.model, optimizer, name)

    for ranks in range(1, job.size + 1):
        some = P_world.create_partition_inclusive(range(job.size - ranks, job.size))
        for columns in {1, ranks}:
            other = Twins(some, KINDS[(KINDS.index(kind) + columns) % 3], seed=5, columns=columns)
            resumed = optimizer_of(other.model, name)
            assert distdl.load(folder / "run.safetensors", other.model, resumed) == {"epoch": 3}
            assert_same_states(distdl.sequential_state_dict(other.model), expected)
            loaded = whole_states(other.model, resumed, name)
            for key in states:
                assert_same_states(loaded[key], states[key])
            assert resumed.param_groups[0]["lr"] == 0.05
            assert all(state["step"] == 3 for state in resumed.state.values() if "step" in state)


@pytest.mark.ranks(1, 3)
@pytest.mark.parametrize("name", ["ASGD", "NAdam", "Rprop"])
def test_the_next_steps_are_those_of_a_run_that_was_not_stopped(P_world, folder, name):
    twins = Twins(P_world, "sharded")
    optimizer = trained(twins, name)
    distdl.save(folder / "run", twins.model, optimizer)
    other = Twins(P_world, "sharded", seed=9)
    resumed = optimizer_of(other.model, name)
    distdl.load(folder / "run", other.model, resumed)
    for run, optim in ((twins, optimizer), (other, resumed)):
        for step in range(3, 6):
            optim.zero_grad()
            run.own_loss(step).backward()
            optim.step()
    assert_same_states(distdl.sequential_state_dict(other.model), distdl.sequential_state_dict(twins.model))


def test_plain_pytorch_and_back(P_world, folder):
    """The sequential model loads the file strictly; a file of save_file is loaded in blocks."""
    twins = Twins(P_world, "sharded", torch.bfloat16)
    distdl.save(folder / "ours", twins.model)
    expected = twins.twin.state_dict()
    stored = load_file(folder / "ours")
    assert stored.keys() == expected.keys()
    assert all(same_bits(stored[key], expected[key]) for key in expected)
    twins.twin.load_state_dict(stored)

    twins.twin[1].weight.data.fill_(7)
    if job.rank == 0:
        save_file(twins.twin.state_dict(), folder / "plain")
    job.Barrier()
    assert distdl.load(folder / "plain", twins.model) == {}
    assert_same_states(distdl.sequential_state_dict(twins.model), twins.twin.state_dict())


@pytest.mark.ranks(1)
@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_the_format_of_torch_distributed(P_world, folder):
    """As the page on checkpoints writes it."""
    import torch.distributed.checkpoint as dcp

    distdl.save(folder / "run", Twins(P_world).model)
    dcp.save(load_file(folder / "run"), checkpoint_id=folder / "folder", no_dist=True)
    expected = load_file(folder / "run")
    loaded = {name: torch.zeros_like(value) for name, value in expected.items()}
    dcp.load(loaded, checkpoint_id=folder / "folder", no_dist=True)
    assert all(same_bits(loaded[name], value) for name, value in expected.items())


MORE = {
    "epoch": 3,
    "best": float("inf"),
    "text": "ü\n",
    "nested": {"a": [1, (2, None)], "$odd": True, 5: "five"},
    "scalar": torch.tensor(3, dtype=torch.int16),
    "rng": torch.Generator().manual_seed(5).get_state(),
    "python": random.Random(3).getstate(),
    "array": np.arange(6.0).reshape(2, 3),
    "milestones": Counter({30: 1}),
    "empty": torch.empty(0, 3),
    "half": torch.ones(5, dtype=torch.float8_e4m3fn),
}


def same(a, b):
    if isinstance(a, dict):
        return type(a) is type(b) and a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, np.ndarray):
        return isinstance(b, np.ndarray) and a.dtype == b.dtype and np.array_equal(a, b)
    if isinstance(a, torch.Tensor):
        return (
            a.dtype == b.dtype
            and a.shape == b.shape
            and torch.equal(a.reshape(-1).view(torch.uint8), b.reshape(-1).view(torch.uint8))
        )
    return type(a) is type(b) and a == b


@pytest.mark.ranks(1, 2)
def test_what_a_run_needs_besides(P_world, folder):
    """Values of the first rank, whatever the others pass."""
    twins = Twins(P_world)
    values = MORE if job.rank == 0 else MORE | {"epoch": 4}
    distdl.save(folder / "run", twins.model, **values)
    loaded = distdl.load(folder / "run", twins.model)
    assert loaded.keys() == MORE.keys()
    for name, value in MORE.items():
        assert same(loaded[name], value), name
    raises_everywhere(
        TypeError, "more/odd/1 is of type object", lambda: distdl.save(folder / "x", twins.model, odd=[0, object()])
    )
    assert list(folder.iterdir()) == [folder / "run"]


@pytest.mark.ranks(2)
def test_dtypes_and_scalars(P_world, folder):
    """Complex numbers of double precision are stored as pairs, scalars and empty tensors as they are."""
    P_x = grid(P_world, [1, job.size])
    module = dnn.Module()
    whole = {
        "z": torch.randn(3, 5, dtype=torch.complex128, generator=torch.Generator().manual_seed(1)),
        "c": torch.randn(4, dtype=torch.complex64, generator=torch.Generator().manual_seed(2)),
        "none": torch.empty(0, 3),
    }
    for name, value in whole.items():
        axes = [None] * (value.dim() - 1) + [1]
        module.declare_parameter(name, P_x, value.shape, axes, dtype=value.dtype)
        layout = module.layouts[name]
        with torch.no_grad():
            if layout.intervals is not None:
                getattr(module, name).copy_(value[tuple(slice(*interval) for interval in layout.intervals)])
    module.register_buffer("flag", torch.tensor(True))
    distdl.save(folder / "run", module)
    file = load_file(folder / "run")
    assert same_bits(torch.view_as_complex(file["z"]), whole["z"])
    assert same_bits(file["c"], whole["c"])
    assert file["flag"].shape == ()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    with torch.no_grad():
        for value in module.state_dict().values():
            value.zero_()
    distdl.load(folder / "run", module)
    assert all(same_bits(value, before[name]) for name, value in module.state_dict().items())


@pytest.mark.ranks(2)
def test_values_of_any_kind(P_world, folder):
    """Values that are passed by name come back as they were."""
    module = dnn.DistributedConv1d(grid(P_world, [1, 1, job.size]), 1, 2, 3)
    values = {
        "pairs": torch.tensor([1j, 2], dtype=torch.complex128),
        "scalar": torch.tensor(1j, dtype=torch.complex128),
        "arrays": [np.array(3.0), np.arange(6).reshape(2, 3)[:, ::-1], np.array([1j]), np.arange(3, dtype=">f4")],
    }
    distdl.save(folder / "run", module, **values)
    loaded = distdl.load(folder / "run", module)
    assert same_bits(loaded["pairs"], values["pairs"])
    assert same_bits(loaded["scalar"], values["scalar"])
    for array, expected in zip(loaded["arrays"], values["arrays"], strict=True):
        assert array.dtype == expected.dtype.newbyteorder("=")
        assert np.array_equal(array, expected)
        assert array.shape == expected.shape


@pytest.mark.ranks(2)
def test_what_no_file_has_or_takes(P_world, folder):
    """Sparse and meta tensors, names, and memory that cannot be written: on a single rank or on all."""

    def model(name="b", value=None):
        module = torch.nn.Module()
        module.layer = dnn.DistributedConv1d(grid(P_world, [1, 1, job.size]), 1, 2, 3)
        module.register_buffer(name, torch.ones(3, 3) if value is None else value)
        return module

    def save(*args, **values):
        return lambda: distdl.save(folder / "run", model(*args), **values)

    raises_everywhere(TypeError, "b is of layout torch.sparse_coo", save("b", torch.eye(3).to_sparse()))
    raises_everywhere(TypeError, "x is of layout torch.sparse_coo", save(x=torch.eye(3).to_sparse()))
    meta = torch.ones(3, 3, device="meta" if job.rank == 0 else "cpu")
    raises_everywhere(TypeError, "b is on the meta device", save("b", meta))
    raises_everywhere(ValueError, "be __metadata__", save("__metadata__"))
    raises_everywhere(TypeError, "model is a int", lambda: distdl.save(folder / "run", 3))
    raises_everywhere(TypeError, "model is a int", lambda: distdl.load(folder / "run", 3))
    good = model()
    optimizer = torch.optim.SGD(good.parameters())  # which says who the other ranks are
    wrong = 3 if job.rank == 0 else good
    raises_everywhere(TypeError, "model is a int", lambda: distdl.save(folder / "run", wrong, optimizer))
    raises_everywhere(TypeError, "model is a int", lambda: distdl.load(folder / "run", wrong, optimizer))
    other = torch.nn.Linear(2, 2) if job.rank == 0 else good
    raises_everywhere(ValueError, "different things", lambda: distdl.save(folder / "run", other, optimizer))
    calls = [distdl.save, distdl.load, distdl.clip_grad_norm_, distdl.sequential_state_dict]
    calls += [distdl.load_sequential, distdl.sequential_gradients]
    for function in calls:  # the model says who the other ranks are
        path = [folder / "run"] if function in calls[:2] else []
        surplus = [None] * 9 if job.rank == 0 else []
        raises_everywhere(
            TypeError,
            "too many positional arguments",
            lambda function=function, arguments=(*path, good, *surplus): function(*arguments),
        )
    for function in (distdl.sequential_state_dict, distdl.load_sequential, distdl.parameter_count):
        raises_everywhere(TypeError, "model is a NoneType", lambda function=function: function(None))
    raises_everywhere(TypeError, "has to be a model, or its parameters", lambda: distdl.clip_grad_norm_(["a"], 1.0))
    raises_everywhere(TypeError, "model is, or has, a NoneType", lambda: distdl.clip_grad_norm_(None, 1.0))
    raises_everywhere(RuntimeError, "UnicodeDecodeError", lambda: distdl.save(str(folder) + "/\udcff", model()))
    assert list(folder.iterdir()) == []
    distdl.save(os.fsencode(folder / "run"), model())
    expanded = model("b", torch.ones(3).expand(3, 3) if job.rank == 0 else None)
    raises_everywhere(RuntimeError, "elements of b share memory", lambda: distdl.load(folder / "run", expanded))
    raises_everywhere(
        RuntimeError,
        "several tensors in it are called",
        lambda: distdl.load(folder / "run", model(), strict=False, rename=lambda name: "b" if name != "b" else name),
    )
    distdl.load(os.fsencode(folder / "run"), model())


@pytest.mark.ranks(1, 2)
def test_states_of_another_kind_of_optimizer(P_world, folder):
    model = dnn.DistributedConv1d(grid(P_world, [1, 1, job.size]), 1, 2, 3)
    adam = torch.optim.AdamW(model.parameters())
    torch.optim.lr_scheduler.ExponentialLR(adam, 0.9)  # adds an option
    distdl.save(folder / "run", model, adam)
    other = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    match = "another optimizer, with .*betas.* and without .*momentum"
    raises_everywhere(ValueError, match, lambda: distdl.load(folder / "run", model, other))
    assert other.param_groups[0]["lr"] == 0.1
    distdl.load(folder / "run", model, torch.optim.AdamW(model.parameters()))


@pytest.mark.ranks(1, 2)
def test_names_that_shift_and_parts_of_a_model(P_world, folder):
    twins = Twins(P_world)
    path = folder / "run"
    distdl.save(path, torch.nn.ModuleDict({"net": twins.model, "other": twins.model[0]}), None)
    state = distdl.sequential_state_dict(twins.model)
    other = Twins(P_world, seed=3)
    optimizer = torch.optim.SGD(other.model.parameters())
    raises_everywhere(
        RuntimeError,
        r"it has no 0\.weight.*; the model has no net\.0\.weight",
        lambda: distdl.load(path, other.model),
    )
    raises_everywhere(
        RuntimeError,
        "no states of an optimizer",
        lambda: distdl.load(
            path,
            other.model,
            optimizer,
            rename=lambda name: name[4:] if name[:4] == "net." else None,
        ),
    )
    distdl.load(path, other.model, strict=False, rename={"net": ""})
    assert_same_states(distdl.sequential_state_dict(other.model), state)
    part = Twins(P_world, seed=4).model[1]
    distdl.load(path, part, rename=lambda name: name.removeprefix("net.1.") if name.startswith("net.1.") else None)
    assert_same_states(
        distdl.sequential_state_dict(part), {name: state[f"1.{name}"] for name in ("weight", "bias")} if state else {}
    )
    norm, *others = Twins(P_world, seed=5).model
    moved = torch.nn.ModuleDict({"norm": norm, "net": torch.nn.ModuleDict({"2": others[0], "4": others[2]})})
    names = {"net": "elsewhere", "net.1": "net.2", "net.0": "norm", "net.3": "net.4"}  # the longest that fits counts
    distdl.load(path, moved, strict=False, rename=names)
    expected = {f"{names[f'net.{name[0]}']}{name[1:]}": tensor for name, tensor in state.items()}
    assert_same_states(distdl.sequential_state_dict(moved), expected)


@pytest.mark.ranks(2, 3)
def test_a_file_that_is_written_meanwhile(P_world, folder):
    """It has the values of the moment of saving, and there is none before wait()."""
    twins = Twins(P_world, "sharded")
    optimizer = trained(twins, "Adam")
    expected = distdl.sequential_state_dict(twins.model)
    saving = distdl.save(folder / "run", twins.model, optimizer, asynchronous=True)
    assert not (folder / "run").exists()
    job.Barrier()
    twins.own_loss(7).backward()
    optimizer.step()
    saving.wait()
    saving.wait()
    distdl.load(folder / "run", twins.model, optimizer)
    assert_same_states(distdl.sequential_state_dict(twins.model), expected)


@pytest.mark.ranks(2, 3)
def test_a_rank_that_does_not_wait(P_world, folder):
    """It is in another call, as after an exception that it caught; the file can be completed afterwards."""
    twins = Twins(P_world)
    saving = distdl.save(folder / "run", twins.model, asynchronous=True)
    layer = dnn.AllSumReduce(P_world, [0])
    raises_everywhere(
        RuntimeError,
        "do not make the same call.*Saving.wait",
        lambda: layer(torch.ones(1)) if job.rank == 0 else saving.wait(),
    )
    saving.wait()
    assert distdl.load(folder / "run", twins.model) == {}


@pytest.mark.ranks(1, 2)
def test_failures_leave_the_file_of_before(P_world, folder):
    """A folder that is not there, a folder in place of the file, a rank that cannot write, other paths."""
    twins = Twins(P_world)
    path = folder / "run"
    distdl.save(path, twins.model)
    before = path.read_bytes()
    job.Barrier()
    raises_everywhere(FileNotFoundError, "No such file", lambda: distdl.save(folder / "no" / "run", twins.model))
    raises_everywhere(FileExistsError, "not a regular file", lambda: distdl.save(folder, twins.model))
    raises_everywhere(FileExistsError, "not a regular file", lambda: distdl.save("/dev/full", twins.model))
    raises_everywhere(FileNotFoundError, "No such file", lambda: distdl.load(folder / "no", twins.model))
    if job.size > 1:
        raises_everywhere(ValueError, "different things", lambda: distdl.save(folder / f"{job.rank}", twins.model))
        raises_everywhere(ValueError, "different things", lambda: distdl.save(path, twins.model, **{f"x{job.rank}": 1}))
    loose = torch.optim.SGD([torch.nn.Parameter(torch.ones(3))])
    raises_everywhere(ValueError, "not one of the model's", lambda: distdl.save(path, twins.model, loose))
    assert path.read_bytes() == before
    job.Barrier()
    assert list(folder.iterdir()) == [path]


@pytest.mark.ranks(2)
@pytest.mark.parametrize("failing", ["open", "pwrite", "fsync", "preadv"])
def test_a_call_that_fails_on_one_rank(P_world, folder, failing, monkeypatch):
    """Nothing hangs, all ranks raise, and nothing is left."""
    twins = Twins(P_world)
    path = folder / "run"
    distdl.save(path, twins.model)
    before = path.read_bytes()
    job.Barrier()
    original, calls = getattr(os, failing), []

    def fail(*args, **kwargs):
        calls.append(args)
        if job.rank == (1 if failing == "open" else 0):
            raise OSError(28, "No space left on device")
        return original(*args, **kwargs)

    monkeypatch.setattr(os, failing, fail)
    if failing == "preadv":
        raises_everywhere(ValueError, "No space left", lambda: distdl.load(path, twins.model))
    else:
        raises_everywhere(OSError, "No space left", lambda: distdl.save(path, twins.model))
    monkeypatch.undo()
    job.Barrier()
    assert path.read_bytes() == before
    assert list(folder.iterdir()) == [path]


@pytest.mark.ranks(2)
@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("failing", ["full", "memory"])
def test_a_rank_that_cannot_write_all_of_it(P_world, folder, failing, asynchronous, monkeypatch):
    """The disk is full in the middle of a chunk, or a checksum finds no memory; the same in a thread."""
    twins = Twins(P_world)
    path = folder / "run"
    distdl.save(path, twins.model)
    before = path.read_bytes()
    job.Barrier()
    limits, match = resource.getrlimit(resource.RLIMIT_FSIZE), "File too large"

    def no_memory(chunk):
        raise MemoryError("no memory for a checksum")

    def save():
        saving = distdl.save(path, twins.model, asynchronous=asynchronous)
        if saving is not None:
            saving.wait()

    if failing == "memory":
        match = "no memory for a checksum"
        if job.rank == 0:
            monkeypatch.setattr("distdl.checkpoint.file.sum_of_words", no_memory)
    elif job.rank == 0:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096 + 100, limits[1]))
    try:
        raises_everywhere(OSError, f"cannot be written: .*{match}.*; an old file there is unchanged", save)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    job.Barrier()
    assert path.read_bytes() == before
    assert list(folder.iterdir()) == [path]


DAMAGES = {
    "truncated": ("damaged", lambda data: data[:-5]),
    "empty": ("damaged", lambda data: b""),
    "of another kind": ("damaged", lambda data: b"PK" + data),
    "one bit in a value": (
        "differ from the bytes that were written",
        lambda data: data[:-100] + bytes([data[-100] ^ 1]) + data[-99:],
    ),
    "the header": ("damaged", lambda data: data[:20] + b"\0\0\0" + data[23:]),
    "a shape": ("header", lambda data: data.replace(b'"shape":[5,6]', b'"shape":[6,5]')),
    "a value in the metadata": ("header", lambda data: data.replace(b'epoch\\": 3', b'epoch\\": 4')),
    "a name in the metadata": ("header", lambda data: data.replace(b'"distdl.header"', b'"distdl.heaven"')),
}


@pytest.mark.ranks(1, 3)
@pytest.mark.parametrize(("match", "damage"), DAMAGES.values(), ids=DAMAGES)
def test_damaged_files_raise_on_all_ranks(P_world, folder, match, damage):
    twins = Twins(P_world)
    path = folder / "run"
    distdl.save(path, twins.model, epoch=3)
    if job.rank == 0:
        data = path.read_bytes()
        assert damage(data) != data
        path.write_bytes(damage(data))
    job.Barrier()
    raises_everywhere(ValueError, match, lambda: distdl.load(path, twins.model))


@pytest.mark.ranks(2)
def test_many_chunks(P_world, folder, monkeypatch):
    """Chunks of 64 bytes cut rows, and tensors that begin anywhere are read as well."""
    import distdl.checkpoint.chunks as chunks

    monkeypatch.setattr(chunks, "CHUNK", 64)
    twins = Twins(P_world, "sharded")
    optimizer = trained(twins, "Adam")
    distdl.save(folder / "run", twins.model, optimizer)
    expected = distdl.sequential_state_dict(twins.model)
    assert job.rank > 0 or all(same_bits(load_file(folder / "run")[name], value) for name, value in expected.items())
    other = Twins(P_world, "replicated", seed=1, columns=job.size)
    distdl.load(folder / "run", other.model, optimizer_of(other.model, "Adam"))
    assert_same_states(distdl.sequential_state_dict(other.model), expected)
