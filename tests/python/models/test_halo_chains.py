"""Several convolutions with one exchange of halos, beside the model in one process."""

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import distdl
from distdl import _core
from distdl.models.plan.halo_choice import HALOS
from support.blocks import grid
from support.distributed import assert_equal_models, assert_none, noise, off, partitions
from support.ranks import job, together

P_world = distdl.Partition(job)


def convolutions(*layers, dims=2, **options):
    """A sequence of convolutions of two channels, and of other layers; a number is the size of a kernel."""
    kind = getattr(torch.nn, f"Conv{dims}d")
    made = [kind(2, 2, each, **{"padding": "same"} | options) if isinstance(each, int) else each for each in layers]
    return torch.nn.Sequential(*made).double()


def normed():
    """A batch norm with statistics of its own."""
    norm = torch.nn.BatchNorm2d(2)
    norm.running_mean.copy_(torch.tensor([0.3, -0.2]))
    norm.running_var.copy_(torch.tensor([1.5, 0.7]))
    return norm


class Blocks(torch.nn.Module):
    """Residual blocks, of which the second changes the size, and channels put together."""

    def __init__(self):
        super().__init__()
        self.first, self.second = convolutions(3, normed(), torch.nn.ReLU(inplace=True), 3), convolutions(3, 3)
        self.stride, self.aside = (torch.nn.Conv2d(2, 2, 3, stride=2, padding=1) for _ in range(2))
        self.shared = torch.nn.Parameter(torch.tensor([0.5, 2.0]).reshape(2, 1, 1))
        self.last = torch.nn.Conv2d(4, 2, 5, padding=2)

    def forward(self, x):
        x = F.relu_(self.first(x) + x)
        y = self.second(x) * self.shared + F.tanh(x)
        y += x
        return self.last(torch.cat([self.stride(y), self.aside(F.gelu(y))], 1))


class Functions(torch.nn.Module):
    """Convolutions as functions, one of them in an activation checkpoint."""

    def __init__(self):
        super().__init__()
        self.weights = torch.nn.ParameterList(torch.randn(2, 1, 3, 3) for _ in range(3))
        self.bias = torch.nn.Parameter(torch.ones(2))

    def forward(self, x):
        x = F.conv2d(x, self.weights[0], self.bias, padding=1, groups=2)
        x = checkpoint(lambda z: F.silu(F.conv2d(z, self.weights[1], None, 1, 2, 2, 2)), x, use_reentrant=False)
        return F.conv2d(F.batch_norm(x, *[self.bias.detach()] * 2), self.weights[2], padding="same", groups=2)


IMAGE = (2, 2, 17, 13)
MODELS = {
    "four": (lambda: convolutions(3, 3, 3, 3), IMAGE),
    "small blocks": (lambda: convolutions(3, 3, 3, 3), (1, 2, 5, 6)),
    "activations and norms": (lambda: convolutions(3, torch.nn.ReLU(True), 4, normed(), torch.nn.GELU(), 3), IMAGE),
    "dilation": (lambda: convolutions(3, torch.nn.PReLU(2), 3, 1, 3, dilation=2), IMAGE),
    "groups": (lambda: convolutions(3, 3, groups=2, bias=False), IMAGE),
    "reflect": (lambda: convolutions(3, torch.nn.Tanh(), 5, 3, padding_mode="reflect"), IMAGE),
    "replicate": (lambda: convolutions(5, 3, 3, padding_mode="replicate"), IMAGE),
    "other sizes": (lambda: convolutions(3, 3, 4, padding=1), IMAGE),
    "without padding": (lambda: convolutions(3, 5, 3, padding="valid"), IMAGE),
    "steps": (lambda: convolutions(3, 3, 3, padding=1, stride=(2, 1)), IMAGE),
    "blocks": (Blocks, IMAGE),
    "functions": (Functions, IMAGE),
    "line": (lambda: convolutions(3, torch.nn.ReLU(), 3, 5, dims=1), (2, 2, 19)),
    "volume": (lambda: convolutions(3, torch.nn.ReLU(), 3, dims=3), (1, 2, 7, 6, 5)),
}


def overlaps(ours):
    """The number of results of which workers compute more than their blocks."""
    return len(ours.program.plan.overlaps)


@pytest.mark.filterwarnings("ignore:Using padding=.same. with even kernel")
@pytest.mark.parametrize("name", MODELS)
def test_chains_equal_the_model_in_one_process(name):
    make, shape = MODELS[name]
    torch.manual_seed(0)
    model = make().double()
    for split in partitions(len(shape)):
        ours = assert_equal_models(model, shape, split, training=False, halos="chain")
        assert (overlaps(ours) > 0) == (max(split[2:]) > 1), split


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
def test_batch_norms_end_a_chain_in_training_only(training):
    torch.manual_seed(0)
    model, split = convolutions(3, 3, normed(), 3, 3), [1, 1, job.size, 1]
    ours = assert_equal_models(model, IMAGE, split, training, halos="chain")
    assert overlaps(ours) == (0 if job.size == 1 else 2 if training else 4)


@pytest.mark.filterwarnings("ignore:Using padding=.same. with even kernel")
@pytest.mark.parametrize("name", ["activations and norms", "blocks"])
def test_second_derivatives(name):
    torch.manual_seed(0)
    make, shape = MODELS[name]
    model = make().double().eval()
    P_x = grid(P_world, [1, 1, 2, 2] if job.size == 4 else [1, 1, job.size, 1])
    ours = distdl.distribute(model, P_x, halos="chain").eval()

    def second(network, x, gather=lambda y: y):
        first = torch.autograd.grad(gather(network(x)).tanh().sum(), [x, *network.parameters()], create_graph=True)
        torch.stack([gradient.square().sum() for gradient in first[1:]]).sum().backward(retain_graph=True)
        first[0].square().sum().backward()
        return x.grad

    whole = noise(shape).requires_grad_()
    x = distdl.scatter(whole.detach(), P_x).detach().requires_grad_()
    slope = distdl.gather(second(ours, x, lambda y: distdl.gather(y, ours.output_partition)), P_x)
    expected = {name: p.grad for name, p in model.named_parameters()} if second(model, whole) is not None else {}
    gradients = distdl.sequential_gradients(ours)
    problems = [off(gradients.get(name), gradient, 1e-8) for name, gradient in expected.items()]
    assert_none([*problems, off(slope, whole.grad, 1e-8)])


def messages(halos, comm):
    """The exchanges in a call of four convolutions, and in its backward pass."""
    P_x = grid(distdl.Partition(comm), [1, 1, job.size, 1])
    with distdl.parameter_layout("replicated"):
        ours = distdl.distribute(convolutions(3, 3, 3, 3), P_x, halos=halos)
    x = distdl.scatter(noise((1, 2, 12 * job.size, 5)), P_x).requires_grad_()
    ours(x).sum().backward()
    counts = []
    distdl.reset_comm_stats()
    y = ours(x)
    counts.append(distdl.comm_stats())
    distdl.reset_comm_stats()
    y.sum().backward()
    counts.append(distdl.comm_stats())
    return [sum(each.calls for name, each in count.items() if "Conv2d" in name) for count in counts]


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("comm", [_core.ONE_HOST], indirect=True)
@pytest.mark.parametrize(("halos", "count"), [("chain", 1), ("each", 4), ("auto", 4)])
def test_one_exchange_in_place_of_four(comm, halos, count):
    """On one host each convolution exchanges its halo by default."""
    assert together(messages(halos, comm)) == [[count, count]] * job.size


@pytest.mark.parametrize("halos", HALOS)
def test_the_report_of_a_plan(halos):
    """It is that of the distributed model."""
    split = [1, 1, job.size, 1]
    with distdl.parameter_layout("replicated"):
        ours = distdl.distribute(convolutions(3, 3, 3, 3), grid(P_world, split), halos=halos)
        planned = distdl.report(convolutions(3, 3, 3, 3), split, (1, 2, 12 * job.size, 5), halos=halos)
    ours(distdl.scatter(noise((1, 2, 12 * job.size, 5)), ours.P_x))
    assert planned == distdl.report(ours)
    assert (sum(row.overlap > 1 for row in planned.rows) > 0) == (halos == "chain" and job.size > 1)


class Returned(torch.nn.Module):
    """Convolutions, the second of which the model returns, too."""

    def __init__(self):
        super().__init__()
        self.layers = convolutions(3, 3, 3, 3)

    def forward(self, x):
        x = between = self.layers[1](self.layers[0](x))
        return self.layers[2:](x), between


NOT_CHAINED = {
    "padding wraps": (lambda: convolutions(3, 3, padding_mode="circular"), IMAGE, 0),
    "batch": (lambda: convolutions(3, 3), (8, 2, 1, 13), 0),  # no rank but the first has any rows
    "empty blocks": (lambda: convolutions(3, 3, padding=1, stride=(4, 1)), (1, 2, 4, 13), 0),
    "transposed": (lambda: convolutions(3, torch.nn.ConvTranspose2d(2, 2, 3, padding=1), 3), IMAGE, 0),
    "outputs of padding": (lambda: convolutions(3, 3, padding=3), IMAGE, 0),
    "returned": (Returned, IMAGE, 2),
}


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("name", NOT_CHAINED)
def test_what_is_no_part_of_a_chain(name):
    torch.manual_seed(0)
    make, shape, count = NOT_CHAINED[name]
    ours = assert_equal_models(make().double(), shape, [1, 1, job.size, 1], training=False, halos="chain")
    assert overlaps(ours) == count


@pytest.mark.mpi(min_size=2)
def test_other_shapes_have_chains_of_their_own():
    torch.manual_seed(0)
    model, P_x = convolutions(3, 3, 3), grid(P_world, [1, 1, job.size, 1])
    ours = distdl.distribute(model, P_x, halos="chain")
    for rows, count in ((17, 2), (1, 0), (23, 2), (17, 2)):
        whole = noise((1, 2, rows, 5))
        y = distdl.gather(ours(distdl.scatter(whole, P_x)), ours.output_partition)
        assert_none([off(y, model(whole))])
        assert overlaps(ours) == count


def test_hooks_see_blocks():
    torch.manual_seed(0)
    model, P_x, whole = Blocks().double().eval(), grid(P_world, [1, 1, job.size, 1]), noise(IMAGE)
    ours = distdl.distribute(model, P_x, halos="chain").eval()
    seen = {False: [], True: []}
    for network in (model, ours):
        for module in network.modules():
            if not [*module.children()]:
                see = seen[network is ours]
                module.register_forward_hook(lambda module, args, y, see=see: see.extend((args[0].clone(), y.clone())))
    model(whole)
    ours(distdl.scatter(whole, P_x))
    rows = [torch.cat(together(block.detach()), 2) for block in seen[True]]
    assert_none([off(own, expected) for own, expected in zip(rows, seen[False], strict=True)])


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("comm", [_core.SEVERAL_HOSTS], indirect=True)
@pytest.mark.parametrize(("machine", "rows", "count"), [
    ({"latency": 1e-2, "flops": 1e11, "call": 1e-5}, 12, 3),
    ({"latency": 1e-6, "flops": 1e11, "call": 1e-5}, 12, 0),
    ({"latency": 1e-5, "flops": 1e9, "call": 1e-5}, 64, 0),
])  # fmt: skip
def test_chains_between_hosts_where_they_are_faster(monkeypatch, comm, machine, rows, count):
    monkeypatch.setattr("distdl.models.plan.halo_choice.measure", lambda *_: distdl.Machine(**machine))
    P_x = grid(distdl.Partition(comm), [1, 1, job.size, 1])
    ours = distdl.distribute(convolutions(3, 3, 3, 3), P_x)
    ours(distdl.scatter(noise((1, 2, rows * job.size, 8)), P_x))
    assert together(overlaps(ours)) == [count] * job.size


@pytest.mark.mpi(min_size=2)
def test_reports_say_what_is_computed_more_than_once():
    P_x = grid(P_world, [1, 1, job.size, 1])
    ours = distdl.distribute(convolutions(3, 3), P_x, halos="chain")
    ours(distdl.scatter(noise((1, 2, 10 * job.size, 5)), P_x))
    report = distdl.report(ours)
    first, second = report.rows
    assert (first.overlap, second.overlap) == ((1.2 if job.size > 2 else 1.1), 1.0)
    assert first.sent == 2 * (job.size - 1) * 2 * 2 * 5 * 8  # two rows of each neighbor
    assert second.sent == 0
    assert f"x{job.size}x1 (+{first.overlap - 1:.0%})" in str(report)
    rows = 12 if job.size > 2 else 11  # of the fullest rank, with a row of each neighbor
    assert (second.memory, second.kept) == (2 * 10 * 5 * 8, 2 * rows * 5 * 8)


@pytest.mark.ranks(1)
@pytest.mark.parametrize(("ranks_per_node", "overlap", "text"), [(8, 1.0, ""), (1, 22 / 16, ", overlaps of 38%")])
def test_plans_between_nodes_have_chains(ranks_per_node, overlap, text):
    machine = distdl.Machine(ranks_per_node=ranks_per_node, node_latency=1e-3)
    plans = distdl.plans(convolutions(3, 3, 3, 3), (1, 2, 64, 4), most=1000, ranks=4, machine=machine)
    proposal = next(each for each in plans if [*each.P_x.shape] == [1, 1, 4, 1] and not each.plan)
    assert (proposal.overlap, str(proposal)) == (overlap, f"[1, 1, 4, 1]{text}")
