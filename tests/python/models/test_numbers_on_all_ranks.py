"""Results without dimensions are on every rank, as in one process: losses, metrics, counts."""

import copy

import pytest
import torch
import torch.nn.functional as F

import distdl
from support.blocks import grid
from support.distributed import assert_none, noise, off, partitions
from support.ranks import job, together

P_world = distdl.Partition(job)


class Measured(torch.nn.Module):
    """A loss, metrics of several dtypes, numbers of parameters and buffers alone, and a block."""

    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(2, 3, 3, padding=1)
        self.scale = torch.nn.Parameter(torch.tensor(1.5))
        self.register_buffer("calls", torch.tensor(0))

    def forward(self, x, targets):
        self.calls += 1
        y = self.conv(x)
        loss = F.mse_loss(y, targets) * self.scale
        metrics = {"positive": (y > 0).sum(), "any": (y > 9).any(), "calls": self.calls * 2, "wave": y.sum() * 1j}
        return loss, metrics, self.scale.square(), y


def _equal(ours, expected):
    pairs = zip(torch.utils._pytree.tree_leaves(ours), torch.utils._pytree.tree_leaves(expected), strict=True)
    return [
        f"{y} on rank {job.rank}, not {z}" for y, z in pairs if y.dtype != z.dtype or not torch.allclose(y, z, 1e-12)
    ]


def _whole():
    return noise((2, 2, 5, 4), 1), noise((2, 3, 5, 4), 2)


@pytest.mark.parametrize("first", [0, 1], ids=["worker 0 on rank 0", "worker 0 on rank 1"])
def test_the_same_numbers_and_the_gradients_of_one_process(first):
    torch.manual_seed(0)
    model = Measured().double()
    for split in partitions(4):
        sequential = copy.deepcopy(model)
        size = torch.Size(split).numel()
        P_x = grid(P_world, split, [(first + i) % job.size for i in range(size)])
        ours = distdl.distribute(model, P_x)
        for _optimizer_step in range(2):
            for network in (ours, sequential):
                network.zero_grad()
            wholes = _whole()
            x, targets = distdl.scatter(wholes, (P_x, P_x))
            loss, metrics, penalty, y = ours(x, targets)
            loss_there, metrics_there, penalty_there, _ = sequential(*wholes)
            problems = _equal((loss, metrics, penalty), (loss_there, metrics_there, penalty_there))
            (loss + penalty).backward()  # on every rank
            (loss_there + penalty_there).backward()
            gradients = distdl.sequential_gradients(ours)
            problems += [off(gradients[name], p.grad) for name, p in sequential.named_parameters() if job.rank == 0]
            assert_none([" ".join(filter(None, problems))])
        assert ours.output_partition[0] is None
        assert ours.output_partition[1]["any"] is None
        assert distdl.gather((loss, y), (None, ours.output_partition[3]))[0] is loss
        assert y.numel() < wholes[1].numel() or size == 1


class PerSample(torch.nn.Module):
    """Scores and a penalty for each sample, rows of features, and statistics of the batch."""

    def __init__(self):
        super().__init__()
        self.conv, self.linear = torch.nn.Conv2d(2, 4, 3, padding=1), torch.nn.Linear(4, 5)

    def forward(self, x):
        y = torch.relu(self.conv(x))
        return self.linear(y.mean((2, 3))), y.square().mean((1, 2, 3)), y.mean((0, 2, 3)), y.sum(1)


def test_losses_of_torch_on_results_for_each_sample():
    """Whole on every rank where samples are not split; rows stay in blocks."""
    torch.manual_seed(0)
    model, x, labels = PerSample().double(), noise((5, 2, 2 * job.size, 3)), torch.tensor([0, 1, 2, 4, 4])

    def loss_of(network, x):
        scores, penalties, means, rows = network(x)
        loss = F.cross_entropy(scores, labels) + penalties.mean() + means.max()
        loss.backward()
        return loss, rows

    P_x = grid(P_world, [1, 1, job.size, 1])
    ours = distdl.distribute(model, P_x)
    loss, rows = loss_of(ours, distdl.scatter(x, P_x))
    expected, rows_there = loss_of(model, x)
    assert_none([off(loss, expected)])
    assert rows.shape[1] == 2
    gathered = distdl.gather(rows, ours.output_partition[3])
    assert_none([off(gathered, rows_there) if job.rank == 0 else ""])
    assert ours.output_partition[:3] == (None, None, None)
    gradients = distdl.sequential_gradients(ours)
    assert_none([off(gradients[name], p.grad) if job.rank == 0 else "" for name, p in model.named_parameters()])


def test_results_for_each_sample_are_split_if_samples_are():
    torch.manual_seed(0)
    model, x = PerSample().double(), noise((2 * job.size, 2, 4, 3))
    P_x = grid(P_world, [job.size, 1, 1, 1])
    ours = distdl.distribute(model, P_x)
    scores, penalties, means, _ = ours(distdl.scatter(x, P_x))
    assert len(scores) == len(penalties) == 2
    assert ours.output_partition[2] is None
    assert_none([off(means, model(x)[2])])
    whole = distdl.gather((scores, penalties), ours.output_partition[:2])
    assert_none([off(own, other) if job.rank == 0 else "" for own, other in zip(whole, model(x), strict=False)])


def test_programs_for_the_first_worker_stay_right():
    """The loss was on worker 0, and the sum of nothing elsewhere."""
    model = Measured().double()
    P_x = grid(P_world, [1, 1, job.size, 1])
    ours = distdl.distribute(model, P_x)
    wholes = _whole()
    loss = ours(*distdl.scatter(wholes, (P_x, P_x)))[0]
    (loss if job.rank == 0 else loss.sum()).backward()
    model(*wholes)[0].backward()
    gradients = distdl.sequential_gradients(ours)
    assert_none([off(gradients["conv.weight"], model.conv.weight.grad) if job.rank == 0 else ""])


def test_second_derivatives_of_a_number():
    model = Measured().double()
    P_x = grid(P_world, [1, 1, job.size, 1])
    ours = distdl.distribute(model, P_x)

    def differentiate(network, x, targets):
        parameters = [*network.conv.parameters()]
        first = torch.autograd.grad(network(x, targets)[0].exp(), parameters, create_graph=True)
        sum(gradient.pow(2).sum() for gradient in first).backward()

    differentiate(ours, *distdl.scatter(_whole(), (P_x, P_x)))
    differentiate(model, *_whole())
    gradients = distdl.sequential_gradients(ours)
    assert_none([off(gradients["conv.weight"], model.conv.weight.grad, 1e-8) if job.rank == 0 else ""])


def test_a_loop_that_stops_by_its_loss():
    """Every rank takes the same branch."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)).double()
    P_x = grid(P_world, [job.size, 1])
    ours = distdl.distribute(model, P_x)
    loss_of = distdl.distribute(F.mse_loss, P_x)
    x, targets = distdl.scatter((noise((6, 3)), noise((6, 1), 1)), (P_x, P_x))
    optimizer, best, losses = torch.optim.SGD(ours.parameters(), lr=0.1), float("inf"), []
    for _ in range(50):
        loss = loss_of(ours(x), targets)
        if not loss < best:
            break
        best = loss.item()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert len(set(together(tuple(losses)))) == 1
    assert losses[-1] < losses[0]


def test_no_number_without_gradients():
    ours = distdl.distribute(Measured().double(), grid(P_world, [1, 1, job.size, 1]))
    with torch.no_grad():
        x = distdl.scatter(_whole(), (ours.P_x, ours.P_x))
        loss = ours(*x)[0]
    assert not loss.requires_grad
    with torch.inference_mode():
        assert torch.equal(ours(*x)[0], loss)
