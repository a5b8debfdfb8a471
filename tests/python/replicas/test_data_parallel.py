"""Replicas that see parts of a batch take the steps of one model that sees all of it."""

import contextlib
import functools

import pytest
import torch

import distdl
import distdl.nn as dnn
from support.jobs import ends
from support.ranks import job, raises_everywhere, together

SAMPLES = 11


class Small(torch.nn.Module):
    """Frozen parameters, and parameters that are unused."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.first, self.unused, self.last = (torch.nn.Linear(a, b) for a, b in ((6, 9), (3, 3), (9, 4)))
        self.first.bias.requires_grad_(False)
        self.double()

    def forward(self, x, targets=None):
        return self.last(torch.tanh(self.first(x)))


def data():
    generator = torch.Generator().manual_seed(2)
    return torch.randn(SAMPLES, 6, generator=generator).double(), torch.randint(4, (SAMPLES,), generator=generator)


def parts(counts):
    """This rank's samples, so many for each rank."""
    start = sum(counts[: job.rank])
    return slice(start, start + counts[job.rank])


def close(model, twin):
    """Gradients up to roundings; None where they are None; and parameters equal to the last bit on all replicas."""
    for (name, parameter), expected in zip(model.module.named_parameters(), twin.parameters(), strict=True):
        assert (parameter.grad is None) == (expected.grad is None), name
        if parameter.grad is not None:
            scale = expected.grad.abs().max()
            assert (parameter.grad - expected.grad).abs().max() <= 1e-12 * scale, name
        assert all(torch.equal(parameter.detach(), copy) for copy in together(parameter.detach())), name


COUNTS = {
    1: [[11]],
    2: [[6, 5], [10, 1], [11, 0]],
    3: [[4, 4, 3], [0, 9, 2]],
    4: [[3, 3, 3, 2], [8, 0, 0, 3]],
}


@pytest.mark.parametrize("counts", COUNTS[job.size], ids=str)
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("cap", [None, 1e-4])
def test_steps_are_those_of_one_batch(P_world, counts, reduction, cap):
    """Uneven batches, also without samples, where a mean is not a number; a single bucket, or a bucket a parameter."""
    twin, net = Small(), Small()
    if job.rank:
        torch.nn.init.zeros_(net.first.weight)  # replica 0 counts
    model = distdl.DataParallel(net, P_world, reduction=reduction, bucket_cap_mb=cap)
    optimizers = [torch.optim.AdamW(module.parameters(), lr=0.1) for module in (twin, model)]
    x, y = data()
    own = parts(counts)
    for _ in range(3):
        for optimizer in optimizers:
            optimizer.zero_grad()
        expected = torch.nn.functional.cross_entropy(twin(x), y, reduction=reduction)
        expected.backward()
        loss = torch.nn.functional.cross_entropy(model(x[own]), y[own], reduction=reduction)
        loss.backward()
        assert abs(model.reduce_loss(loss) - expected) <= 1e-12 * abs(expected)
        close(model, twin)
        for optimizer in optimizers:
            optimizer.step()


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("synchronized", [False, True])
@pytest.mark.ranks(2, 3)
def test_accumulation(P_world, synchronized, reduction):
    """Three uneven batches, with a penalty on the weights, are added up before the step."""
    twin, model = Small(), distdl.DataParallel(Small(), P_world, reduction=reduction)
    x, y = data()
    penalty = 1.0 if reduction == "mean" else 1 / job.size  # each replica adds it to its sum
    for i, counts in enumerate(COUNTS[job.size] + [[5, 6] + [0] * (job.size - 2)]):
        own = parts(counts)
        expected = torch.nn.functional.cross_entropy(twin(x), y, reduction=reduction)
        (expected + twin.last.weight.square().sum()).backward()
        with model.no_sync() if i < len(COUNTS[job.size]) and not synchronized else contextlib.nullcontext():
            loss = torch.nn.functional.cross_entropy(model(x[own]), y[own], reduction=reduction)
            (loss + penalty * model.module.last.weight.square().sum()).backward()
    close(model, twin)


@pytest.mark.ranks(2, 3)
def test_weights_by_tokens(P_world):
    """A loss that leaves targets out counts the others."""
    twin, model = Small(), distdl.DataParallel(Small(), P_world, samples=lambda x, y: (y >= 0).sum().item())
    x, y = data()
    y[2:5] = -100
    own = parts(COUNTS[job.size][0])
    torch.nn.functional.cross_entropy(twin(x, y), y).backward()
    torch.nn.functional.cross_entropy(model(x[own], y[own]), y[own]).backward()
    close(model, twin)


@pytest.mark.ranks(2, 4)
def test_a_parameter_that_some_replicas_use(P_world):
    """It gets a gradient on all of them; those of the passes before are kept."""
    model = distdl.DataParallel(Branches(), P_world)
    loss = model(torch.ones(1, 2), job.rank == 1).sum()
    loss.backward(retain_graph=True)
    first, second = (layer.weight.grad.clone() for layer in (model.module.first, model.module.second))
    assert torch.equal(first, torch.full((2, 2), (job.size - 1) / job.size))
    assert torch.equal(second, torch.full((2, 2), 1 / job.size))
    loss.backward()
    assert torch.equal(model.module.second.weight.grad, 2 * second)


class Branches(torch.nn.Module):
    """Takes one of two layers; a third one is never taken."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.third = (torch.nn.Linear(2, 2, bias=False) for _ in range(3))

    def forward(self, x, takes_second):
        return self.second(x) if takes_second else self.first(x)


@pytest.mark.ranks(2, 3)
def test_gradients_travel_during_the_backward_pass(P_world):
    """At least four fifths of the bytes are under way before it ends."""
    layers = [layer for _ in range(12) for layer in (torch.nn.Linear(128, 128), torch.nn.ReLU())]
    model = distdl.DataParallel(torch.nn.Sequential(*layers), P_world)
    for _ in range(2):
        model(torch.randn(512, 128)).sum().backward()
    assert all(share >= 0.8 for share in together(model.overlap)), together(model.overlap)


@pytest.mark.ranks(2)
def test_freezing_between_steps(P_world):
    twin, model = Small(), distdl.DataParallel(Small(), P_world)
    x, y = data()
    own = parts([6, 5])
    for frozen in (False, True):
        for module in (twin, model.module):
            module.first.weight.requires_grad_(not frozen)
            module.first.bias.requires_grad_(frozen)
            module.zero_grad()
        torch.nn.functional.cross_entropy(twin(x), y).backward()
        torch.nn.functional.cross_entropy(model(x[own]), y[own]).backward()
        close(model, twin)


@pytest.mark.ranks(2)
@pytest.mark.parametrize("broadcast", [True, False])
def test_buffers(P_world, broadcast):
    """Replica 0's running statistics, or each replica's own."""
    model = distdl.DataParallel(torch.nn.BatchNorm1d(3), P_world, broadcast_buffers=broadcast)
    for _ in range(2):
        model(torch.full((4, 3), float(job.rank)) + torch.arange(4.0)[:, None]).sum().backward()
    model.eval()
    own = model.module.running_mean[0].item()
    assert model.module.num_batches_tracked == 2
    after_one = 0.1 * (1.5 + (0 if broadcast else job.rank))
    assert own == pytest.approx(0.9 * after_one + 0.1 * (1.5 + job.rank))


@pytest.mark.ranks(4)
@pytest.mark.parametrize("layout", ["owner", "sharded", "replicated"])
def test_replicas_of_a_partitioned_model(P_world, layout):
    """Two replicas, each on two blocks of the image; uneven batches."""
    P_replicas = P_world.create_cartesian_topology_partition([2, 2])
    P = P_replicas.create_cartesian_subtopology_partition([False, True])
    P_x = P.create_cartesian_topology_partition([1, 1, 2, 1])
    torch.manual_seed(0)
    twin = torch.nn.Sequential(
        torch.nn.Conv2d(2, 3, 3, padding=1), torch.nn.ReLU(), torch.nn.GroupNorm(1, 3), torch.nn.Conv2d(3, 2, 3)
    ).double()
    root = 2 * (job.rank // 2)  # the first rank of this replica
    with distdl.parameter_layout(layout):
        net = torch.nn.Sequential(
            dnn.DistributedConv2d.from_sequential(twin[0], P_x, root=root),
            torch.nn.ReLU(),
            dnn.DistributedGroupNorm.from_sequential(twin[2], P_x, root=root),
            dnn.DistributedConv2d.from_sequential(twin[3], P_x, root=root),
        )
    model, criterion = distdl.DataParallel(net, P_replicas), dnn.DistributedMSELoss(P_x)
    assert (model.replicas, model.replica) == (2, job.rank // 2)
    x = torch.randn(5, 2, 7, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    own = x[:3] if model.replica == 0 else x[3:]
    own = own[P_x.slices(own.shape)].clone()
    optimizers = [torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9) for module in (twin, model)]
    for _ in range(3):
        for optimizer in optimizers:
            optimizer.zero_grad()
        output, y = twin(x), model(own)
        expected = torch.nn.functional.mse_loss(output, torch.ones_like(output))
        loss = criterion(y, torch.ones_like(y))
        expected.backward()
        loss.backward()
        assert abs(model.reduce_loss(loss) - expected) <= 1e-12 * expected
        for optimizer in optimizers:
            optimizer.step()
    state = distdl.sequential_state_dict(net, root)
    for name, value in twin.state_dict().items() if state else ():
        torch.testing.assert_close(state[name], value, rtol=1e-11, atol=1e-11)


@pytest.mark.ranks(2, 3)
def test_replicas_that_leave_earlier(P_world):
    """With join(), the others go on as if the replica had no samples; at the end all have the same weights."""
    twin, model = Small(), distdl.DataParallel(Small(), P_world)
    x, y = data()
    optimizers = [torch.optim.SGD(module.parameters(), lr=0.1) for module in (twin, model)]
    steps = 1 + job.rank
    for step in range(job.size):
        optimizers[0].zero_grad()
        torch.nn.functional.cross_entropy(twin(x[: 3 * (job.size - step)]), y[: 3 * (job.size - step)]).backward()
        optimizers[0].step()
    with model.join():
        for step in range(steps):
            own = slice(3 * (job.rank - step), 3 * (job.rank - step + 1))
            optimizers[1].zero_grad()
            torch.nn.functional.cross_entropy(model(x[own]), y[own]).backward()
            optimizers[1].step()
    for parameter, expected in zip(model.parameters(), twin.parameters(), strict=True):
        assert (parameter - expected).abs().max() <= 1e-12
    model(x)  # all take part again


@pytest.mark.turns(3)
@pytest.mark.ranks(1)
def test_a_replica_that_ends_earlier_hangs_nobody():
    """The other one raises."""
    program = """
        import torch, distdl
        P = distdl.Partition()
        model = distdl.DataParallel(torch.nn.Linear(2, 2), P)
        try:
            for _ in range(1 + P.rank):
                model(torch.ones(1, 2)).sum().backward()
        except RuntimeError as error:
            print("raised:", error)
    """
    said = ends(program)[1]
    assert "raised: the ranks do not make the same call; rank 0: the end of the program" in said, said


@pytest.mark.turns(3)
@pytest.mark.ranks(1)
def test_a_rank_that_fails_in_a_backward_pass_and_ends_hangs_nobody():
    """Of two replicas of two ranks: the others wait for it in layers, in sums, and at the end of the pass."""
    program = """
        import torch, distdl, distdl.nn as dnn
        P = distdl.Partition()
        P_replicas = P.create_cartesian_topology_partition([2, 2])
        P_own = P_replicas.create_cartesian_subtopology_partition([False, True])
        P_x = P_own.create_cartesian_topology_partition([1, 1, 2])
        class Fails(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x.clone()
            @staticmethod
            def backward(ctx, gradient):
                if P.rank == 1:
                    raise KeyError
                return gradient.clone()
        class Net(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.layers = torch.nn.ModuleList(dnn.DistributedConv1d(P_x, 1, 1, 3, padding=1) for _ in range(2))
            def forward(self, x):
                return self.layers[1](Fails.apply(self.layers[0](x)))
        model = distdl.DataParallel(Net(), P_replicas, bucket_cap_mb=1e-6)
        try:
            dnn.DistributedMSELoss(P_x)(model(torch.ones(1, 1, 4)), torch.zeros(1, 1, 4)).backward()
        except (KeyError, RuntimeError) as error:
            print(P.rank, type(error).__name__, error)
    """
    status, said = ends(program, ranks=4, DISTDL_WATCHDOG="0")
    assert status == 0, said
    assert "1 KeyError" in said, said
    for rank in (0, 2, 3):
        assert f"{rank} RuntimeError" in said, said


@pytest.mark.ranks(2, 3)
def test_mistakes_are_raised_everywhere(P_world):
    def make(net=None, **options):
        return lambda: distdl.DataParallel(torch.nn.Linear(2, 2) if net is None else net, P_world, **options)

    raises_everywhere(TypeError, "module is a int", make(3))
    raises_everywhere(ValueError, "reduction='none'", make(reduction="none"))
    raises_everywhere(ValueError, "bucket_cap_mb=0", make(bucket_cap_mb=0))
    raises_everywhere(ValueError, "a model with", make(torch.nn.Linear(2, 2 + (job.rank == 0))))
    raises_everywhere(ValueError, "ask for different things", make(broadcast_buffers=job.rank == 0))
    raises_everywhere(
        TypeError, "P_replicas is a int", lambda: distdl.DataParallel(torch.nn.Linear(2, 2), 3), involved=True
    )
    model = make()()
    with model.no_sync() if job.rank == 0 else contextlib.nullcontext():
        raises_everywhere(ValueError, "within no_sync", lambda: model(torch.ones(1, 2)))
    model.module.bias.requires_grad_(job.rank == 0)
    raises_everywhere(ValueError, "requires_grad of parameters differs", lambda: model(torch.ones(1, 2)))
    model.module.bias.requires_grad_(True)
    model(torch.ones(1, 2)).sum().backward()
    counts = distdl.DataParallel(torch.nn.Linear(2, 2), P_world, samples=lambda x: 1 / (job.rank - 1))
    raises_everywhere(ZeroDivisionError, "division by zero", lambda: counts(torch.ones(1, 2)))


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("wrong", [-1, float("nan"), float("inf"), float("-inf"), 1.5e308])
def test_samples_that_cannot_be_counted(P_world, wrong):
    """Also where it is their sum that is too large."""
    count = {job.size - 1: wrong, 0: 1e308}
    model = distdl.DataParallel(torch.nn.Linear(2, 2), P_world, samples=lambda x: count.get(job.rank, 1))
    raises_everywhere(ValueError, "have to be finite, and at least 0", lambda: model(torch.ones(1, 2)))
    count.clear()
    model(torch.ones(1, 2)).sum().backward()


def grids(P):
    """Replicas of one rank, and where this is possible, replicas of two."""
    shapes = [[job.size]] + ([[job.size // 2, 2]] if job.size % 2 == 0 and job.size > 2 else [])
    return [P.create_cartesian_topology_partition(shape) for shape in shapes]


@pytest.mark.ranks(2, 4)
def test_a_sparse_gradient_on_one_replica(P_world):
    """It is refused on all ranks, also on those that have other parameters; then training goes on."""
    for P_replicas in grids(P_world):
        net = torch.nn.Sequential(torch.nn.Embedding(5, 3, sparse=job.rank == 1), torch.nn.Linear(3, 2))
        model = distdl.DataParallel(net, P_replicas)
        raises_everywhere(TypeError, "sparse_coo", lambda model=model: model(torch.tensor([1, 2])).sum().backward())
        net[0].sparse = False
        model.zero_grad()
        model(torch.tensor([1, 2])).sum().backward()
        assert net[0].weight.grad[1:3].count_nonzero() == 6


class Fails(torch.autograd.Function):
    """A gradient that cannot be computed."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        raise KeyError("in the backward pass")


class Failing(torch.nn.Module):
    """Raises where it is told to."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.first, self.last = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)

    def forward(self, x, where=""):
        if where == "forward":
            raise KeyError("in the forward pass")
        x = self.first(x)
        return self.last(Fails.apply(x) if where == "backward" else x)


@pytest.mark.ranks(2, 4)
@pytest.mark.parametrize("where", ["forward", "loss", "backward"])
@pytest.mark.parametrize("everywhere", [False, True])
def test_an_exception_that_a_rank_catches(P_world, where, everywhere):
    """The others raise when this rank begins its next step; an exception of all ranks is none of the next step."""
    for P_replicas in grids(P_world):
        model = distdl.DataParallel(Failing(), P_replicas, bucket_cap_mb=1e-6)

        def step(where="", model=model):
            loss = model(torch.ones(1, 2), where).sum()
            if where == "loss":
                raise KeyError("in the loss")
            loss.backward()

        if everywhere or job.rank == job.size - 1:
            with pytest.raises(KeyError):
                step(where)
        if not everywhere:
            with pytest.raises(RuntimeError, match=r"different places of a step|ended the backward pass") as raised:
                step()
            assert len(set(together(str(raised.value)))) == 1
        model.zero_grad()
        step()
        assert torch.equal(model.module.last.bias.grad, torch.ones(2))


class Normalized(torch.nn.Module):
    """A norm over the samples of all replicas among layers of each replica; without P as torch has it."""

    def __init__(self, P=None, **options):
        super().__init__()
        torch.manual_seed(3)
        norm = torch.nn.BatchNorm1d if P is None else functools.partial(dnn.DistributedBatchNorm1d, P)
        # Behind the norm a bias has no gradient but roundings.
        self.first, self.norm, self.last = torch.nn.Linear(6, 8, bias=False), norm(8, **options), torch.nn.Linear(8, 4)
        self.double()

    def forward(self, x):
        return self.last(torch.tanh(self.norm(self.first(x))))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "options",
    [{}, {"track_running_stats": False}, {"affine": False}, {"affine": False, "track_running_stats": False}],
    ids=str,
)
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.ranks(2, 3)
def test_a_norm_over_the_replicas_is_that_of_the_whole_batch(P_world, reduction, options):
    """In the backward pass its calls come between the sums of gradients, each of a single parameter."""
    P = P_world.create_cartesian_topology_partition([job.size, 1])
    with distdl.parameter_layout("replicated"):
        model = distdl.DataParallel(Normalized(P, **options), P_world, reduction=reduction, bucket_cap_mb=1e-4)
    twin = Normalized(**options)
    optimizers = [torch.optim.SGD(module.parameters(), lr=0.1) for module in (twin, model)]
    x, y = (tensor[: 3 * job.size] for tensor in data())
    own = parts([3] * job.size)
    for _ in range(3):
        for optimizer in optimizers:
            optimizer.zero_grad()
        expected = torch.nn.functional.cross_entropy(twin(x), y, reduction=reduction)
        expected.backward()
        torch.nn.functional.cross_entropy(model(x[own]), y[own], reduction=reduction).backward()
        close(model, twin)
        for optimizer in optimizers:
            optimizer.step()
    for name, expected in twin.named_buffers():
        buffer = dict(model.module.named_buffers())[name]
        assert buffer.numel() == 0 or torch.allclose(buffer, expected, rtol=1e-12, atol=0), name


@pytest.mark.ranks(2)
def test_a_norm_over_the_replicas_that_cannot_be_right_is_refused(P_world):
    P = P_world.create_cartesian_topology_partition([job.size, 1])
    raises_everywhere(
        ValueError, 'norm is .* its weight; .*"replicated"', lambda: distdl.DataParallel(Normalized(P), P_world)
    )
    model = distdl.DataParallel(Normalized(P, affine=False), P_world)
    x, _ = data()
    raises_everywhere(ValueError, "the replicas have .* samples", lambda: model(x[: 2 + job.rank]))


WAITS = """
import time, torch
from mpi4py import MPI
import distdl

P = distdl.Partition(MPI.COMM_WORLD)
model = distdl.DataParallel(torch.nn.Linear(4, 4), P)
model(torch.ones(2, 4)).sum().backward()
# Behind this gradient are the sums, for which rank 0 waits.
model.module.weight.register_hook(lambda gradient: time.sleep(2.0 * P.rank))
MPI.COMM_WORLD.Barrier()
result, used = model(torch.ones(2, 4)).sum(), time.process_time()
start = time.monotonic()
result.backward()
if P.rank == 0:
    print(f"{time.monotonic() - start > 1.5} {time.process_time() - used < 0.5}")
"""


@pytest.mark.ranks(1)
def test_the_thread_of_the_sums_sleeps_while_it_waits():
    assert ends(WAITS) == (0, "True True\n")
