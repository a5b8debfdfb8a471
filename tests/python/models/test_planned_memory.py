"""The memory of a step of training, as distdl.report and distdl.plans tell it, against bytes counted by hand."""

import math
import subprocess
import sys
import xml.etree.ElementTree

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import distdl
from distdl.models.plans_command import main
from support.jobs import OUTSIDE
from support.models import Function, Residual
from support.ranks import raises_everywhere

pytestmark = pytest.mark.ranks(1)
N, FEATURES = 64, 32
BLOCK, WEIGHT = 4 * N * FEATURES, 4 * FEATURES * FEATURES


def linear():
    return torch.nn.Linear(FEATURES, FEATURES, bias=False)


class Chain(torch.nn.Sequential):
    """A linear layer, a function, and another linear layer."""

    def __init__(self, *layers):
        super().__init__(linear(), *layers, linear())


class InCheckpoint(Chain):
    def forward(self, x):
        return checkpoint(super().forward, x, use_reentrant=False)


def kept(model, P_x=(1, 1)):
    """Bytes that each operation keeps, without parameters."""
    return [row.kept for row in distdl.report(model, P_x=list(P_x), shape=(N, FEATURES)).rows]


def test_what_is_kept_by_each_operation():
    assert kept(Chain()) == [BLOCK, BLOCK]  # the inputs of both
    assert kept(Chain(torch.nn.ReLU())) == [BLOCK, BLOCK, 0]  # the result of relu, once
    assert kept(Chain(torch.nn.GELU())) == [BLOCK, BLOCK, BLOCK]  # its input, and its result for the layer after it
    assert kept(Chain(torch.nn.ReLU(inplace=True))) == [BLOCK, BLOCK, 0]
    assert kept(Chain(torch.nn.Unflatten(1, (2, -1)), torch.nn.Flatten())) == [BLOCK, 0, 0, BLOCK]
    statistics = 2 * 4 * N  # mean and deviation of each row
    assert kept(Chain(torch.nn.LayerNorm(FEATURES))) == [BLOCK, BLOCK + statistics, BLOCK]
    assert kept(Chain(torch.nn.ReLU()), (4, 1)) == [BLOCK // 4, BLOCK // 4, 0]


def test_functions_without_parameters_keep_nothing():
    assert kept(torch.nn.Sequential(torch.nn.Tanh(), torch.nn.Softmax(1))) == [0, 0]
    frozen = Chain(torch.nn.ReLU())
    frozen.requires_grad_(False)
    assert kept(frozen) == [0, 0, 0]


def test_autocast_keeps_half():
    with torch.autocast("cpu", torch.bfloat16):
        half = kept(Chain(torch.nn.ReLU()))
    casts = WEIGHT // 2  # the weight of the last layer; the first has no gradient of its input
    assert half == [BLOCK // 2, BLOCK // 2, casts]


def parts(model, P_x=(1, 1), **options):
    return distdl.report(model, P_x=list(P_x), shape=(N, FEATURES), **options).step


def test_a_step_of_a_chain():
    step = parts(Chain(torch.nn.ReLU()))
    assert (step.weights, step.optimizer) == (2 * WEIGHT, 4 * WEIGHT)
    # In the backward pass of the last layer: its input and that of the first; the result, its gradient, and the next.
    assert (step.kept, step.passing, step.gradients) == (2 * BLOCK, 3 * BLOCK, WEIGHT)
    assert step.total == 7 * WEIGHT + 5 * BLOCK
    assert parts(Chain(), optimizer="sgd").optimizer == 0
    assert parts(Chain(), optimizer=3).optimizer == 6 * WEIGHT


def test_a_step_of_a_chain_on_four_ranks():
    step = parts(Chain(torch.nn.ReLU()), (4, 1))
    # In the backward pass of the last layer: its gradient on this rank, and the message with it.
    assert (step.weights, step.gradients, step.copies) == (2 * WEIGHT, WEIGHT, 2 * WEIGHT)
    assert (step.kept, step.passing) == (2 * BLOCK // 4, 3 * BLOCK // 4)


def test_the_gradient_of_a_large_weight():
    size = 256
    weight = 4 * size * size
    model = torch.nn.Linear(size, size, bias=False)
    step = distdl.report(model, P_x=[4, 1], shape=(4, size)).step
    assert (step.weights, step.gradients, step.optimizer) == (weight, weight, 2 * weight)
    # The gradient of this rank and the message with it, as much as Adam computes later; a row, its result and gradient.
    assert (step.copies, step.kept, step.passing) == (2 * weight, 4 * size, 2 * 4 * size)


def test_convolutions_reorder_channels():
    images, weight = (1, 16, 32, 32), 4 * 16 * 16
    block, row = 4 * 16 * 32 * 32, 4 * 16 * 32
    layers = [torch.nn.Conv2d(16, 16, 1, bias=False), torch.nn.Conv2d(16, 16, 3, padding=1, bias=False)]
    model = torch.nn.Sequential(*layers)
    step = distdl.report(model, P_x=[1, 1, 1, 1], shape=images).step
    # In the backward pass of the last layer: the result, its gradient and that of its input, and two reordered tensors.
    assert (step.kept, step.passing) == (2 * block, 5 * block)
    step, half = distdl.report(model, P_x=[1, 1, 2, 1], shape=images).step, block // 2
    padded = half + row  # with a halo
    assert (step.kept, step.passing) == (half + padded, 5 * half + padded)
    assert step.copies == 2 * 9 * weight  # the gradient of the last layer on this rank, and the sum


def test_transforms_back_are_of_complex_numbers():
    class Filter(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(FEATURES))

        def forward(self, x):
            return torch.fft.irfft(torch.fft.rfft(x * self.weight))

    step, spectrum = parts(Filter()), 8 * N * (FEATURES // 2 + 1)
    assert step.kept == BLOCK  # what is multiplied; of what is transformed the shape is enough
    # In the backward pass of irfft: the result, its gradient, that of the spectrum, and two complex tensors.
    assert step.passing == 2 * BLOCK + spectrum + 2 * 2 * BLOCK


@pytest.mark.parametrize(("layout", "share"), [("owner", 1), ("sharded", 4), ("replicated", 1)])
def test_layouts(layout, share):
    with distdl.parameter_layout(layout):
        step = parts(Chain(), (4, 1))
    assert step.weights == 2 * WEIGHT // share
    assert step.optimizer == 4 * WEIGHT // share


def test_checkpoints_keep_their_inputs():
    deep = [torch.nn.GELU() for _ in range(8)]
    plain, computed_again = (parts(model).kept for model in (Chain(*deep), InCheckpoint(*deep)))
    assert plain >= 9 * BLOCK
    model = torch.nn.Sequential(InCheckpoint(*deep), InCheckpoint(*deep))
    assert parts(model).kept <= computed_again + BLOCK


def test_halos_are_kept():
    conv = torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Conv2d(1, 1, 3, padding=1))
    rows, columns = 32, 16
    report = distdl.report(conv, P_x=[1, 1, 4, 1], shape=(1, 1, rows, columns))
    assert report.rows[1].kept == 4 * (rows // 4 + 2) * columns


@pytest.mark.parametrize("name", ["conv2d", "conv_transpose2d"])
def test_functions_that_convolve(name):
    model = Function(lambda x: getattr(torch.nn.functional, name)(x, torch.ones(2, 2, 3, 3), padding=1))
    assert distdl.report(model, P_x=[1, 1, 2, 1], shape=(2, 2, 64, 64)).memory > 0


def test_more_ranks_than_there_are():
    with torch.device("meta"):
        model = Residual()
    machine = distdl.Machine(memory="100KiB", flops=1e12, memory_bandwidth=1e11)
    found = distdl.plans(model, (2, 2, 256, 256), ranks=512, machine=machine)
    assert max(found.by_ranks) == 512
    memory = [proposal.memory for proposal in found.by_ranks.values()]
    assert memory == sorted(memory, reverse=True)
    fitting = [ranks for ranks, proposal in found.by_ranks.items() if proposal.memory <= 100 << 10]
    assert f"from {fitting[0]} ranks on" in found.answer()
    assert found.fits(found[0])
    report = distdl.report(model, P_x=[1, 1, 16, 32], shape=(2, 2, 256, 256))
    assert report.workers == 512
    assert report.rows[0].splits == (1, 1, 16, 32)


def test_thicker_blocks_come_first():
    machine = distdl.Machine(ranks_per_node=16, latency=1e-12, bandwidth=1e15, call=1e-12)
    conv = torch.nn.Conv2d(1, 4, 3, padding=1)
    found = distdl.plans(conv, (1, 1, 256, 256), ranks=16, machine=machine)
    assert found[0].block == (1, 1, 64, 64)


def test_inputs_of_other_dtypes():
    tokens = torch.empty(4, 16, dtype=torch.long, device="meta")
    model = torch.nn.Sequential(torch.nn.Embedding(10, 8), torch.nn.Linear(8, 8))
    assert len(distdl.plans(model, tokens, ranks=4, machine=distdl.Machine())) > 0
    assert len(distdl.plans(torch.nn.Bilinear(8, 8, 4), [(4, 8), (4, 8)], ranks=4, machine=distdl.Machine())) > 0


def test_long_times_are_in_seconds():
    slow, fast = (distdl.Machine(flops=flops) for flops in (1, 1e9))
    tables = [str(distdl.plans(Chain(), (N, FEATURES), ranks=2, machine=machine)) for machine in (slow, fast)]
    assert [text.split()[1:4] for text in tables] == [["s", "a", "step"], ["ms", "a", "step"]]


def test_picture(tmp_path):
    found = distdl.plans(Chain(), (N, FEATURES), ranks=4, machine=distdl.Machine(memory=7 * WEIGHT))
    found.picture(tmp_path / "ranks.svg")
    texts = [element.text for element in xml.etree.ElementTree.parse(tmp_path / "ranks.svg").iter() if element.text]
    assert found.answer() in texts
    assert "dasharray" in (tmp_path / "ranks.svg").read_text()
    most = max(proposal.memory for proposal in found.by_ranks.values())
    distdl.plans(Chain(), (N, FEATURES), ranks=4, machine=distdl.Machine(memory=most)).picture(tmp_path / "all.svg")
    assert "dasharray" not in (tmp_path / "all.svg").read_text()  # all of them fit, so that no line parts them


def test_sizes_stand_beside_the_line_of_a_picture(tmp_path):
    found = distdl.plans(Chain(), (N, FEATURES), ranks=4, machine=distdl.Machine())
    *smaller, _ = sorted(proposal.memory for proposal in found.by_ranks.values())
    for memory in smaller:  # the line is a little behind the bar
        machine = distdl.Machine(memory=1.05 * memory)
        distdl.plans(Chain(), (N, FEATURES), ranks=4, machine=machine).picture(tmp_path / "ranks.svg")
        elements = [*xml.etree.ElementTree.parse(tmp_path / "ranks.svg").iter()]
        (line,) = [float(element.get("x1")) for element in elements if element.get("stroke-dasharray")]
        texts = [(float(e.get("x")), e.text) for e in elements if e.text and e.text.endswith(("MiB", "GiB"))]
        assert len(texts) == len(found.by_ranks)
        assert all(line < x or x + 6.6 * len(shown) < line for x, shown in texts)


def test_command(tmp_path):
    program = tmp_path / "program.py"
    program.write_text("import torch\n\ndef make_model():\n    return torch.nn.Linear(64, 64)\n")
    flags = [
        "--shape",
        "8,64",
        "--ranks",
        "4",
        "--memory",
        "1MiB",
        "--latency",
        "1e-6",
        "--picture",
        str(tmp_path / "a.svg"),
    ]
    command = [sys.executable, "-m", "distdl.plans", "program:make_model", *flags]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=OUTSIDE, timeout=100, check=True)
    assert "fits in 0.000977 GiB a rank from 1 rank on" in done.stdout
    assert (tmp_path / "a.svg").exists()
    with pytest.raises(SystemExit, match="absent"):
        main(["absent:other", *flags])


def test_mistakes():
    with pytest.raises(SystemExit, match="2"):  # before the program is looked for
        main(["absent:other", "--shape", "8,64", "--ranks", "4", "--optimizer", "unknown"])
    raises_everywhere(ValueError, "ranks=None", lambda: distdl.plans(Chain(), (N, FEATURES)))
    raises_everywhere(ValueError, "ranks=0", lambda: distdl.plans(Chain(), (N, FEATURES), ranks=0))
    raises_everywhere(ValueError, "optimizer='unknown'", lambda: parts(Chain(), optimizer="unknown"))
    raises_everywhere(ValueError, "takes P_x and shape", lambda: distdl.report(Chain(), P_x=[1, 1]))
    raises_everywhere(ValueError, "P_x=", lambda: distdl.report(Chain(), P_x=[0, 1], shape=(2, 2)))
    raises_everywhere(ValueError, "64 parrots", lambda: distdl.Machine(memory="64 parrots"))
    raises_everywhere(TypeError, "distdl.Machine", lambda: distdl.plans(Chain(), (2, 2), ranks=2, machine="fast"))
    assert distdl.Machine(memory="2 GB").memory == 2e9
    assert math.isclose(distdl.Machine(memory="1.5GiB").memory, 1.5 * 2**30)


def test_the_command_leaves_the_function():
    import distdl.plans

    assert callable(distdl.plans)
