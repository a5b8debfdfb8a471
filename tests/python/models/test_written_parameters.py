"""Models that write into their parameters: codebooks that follow their data, encoders that follow others, bounds."""

import copy

import pytest
import torch
import torch.nn.functional as F

import distdl
from support.blocks import grid
from support.distributed import P_world, assert_none, noise, off, partitions, whole
from support.ranks import job, raises_everywhere


class Codebook(torch.nn.Module):
    """Replaces each pixel by the nearest of some vectors, which follow the mean of the pixels that are near."""

    def __init__(self):
        super().__init__()
        self.conv, self.codes = torch.nn.Conv2d(2, 3, 1), torch.nn.Embedding(4, 3)
        self.codes.weight.requires_grad = False
        self.register_buffer("count", torch.ones(4))

    def forward(self, x):
        y = self.conv(x).permute(0, 2, 3, 1).flatten(0, 2)
        weight = self.codes.weight
        nearest = F.one_hot(((y[:, None] - weight) ** 2).sum(-1).argmin(-1), 4).to(y.dtype)
        codes = nearest @ weight
        if self.training:
            with torch.no_grad():
                self.count.mul_(0.9).add_(0.1 * nearest.sum(0))
                self.codes.weight.data.copy_(0.9 * weight + 0.1 * (nearest.T @ y) / self.count[:, None])
        return y + (codes - y).detach(), F.mse_loss(y, codes)


class Follower(torch.nn.Module):
    """An encoder whose weights follow those of another one, and become bounded ones in another way."""

    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Conv2d(2, 3, 3, padding=1), torch.nn.Conv2d(2, 3, 3, padding=1)
        self.second.requires_grad_(False)

    def forward(self, x):
        for own, other in zip(self.second.parameters(), self.first.parameters(), strict=True):
            own.data = 0.9 * own.data + 0.1 * other.data
        return self.first(x) * self.second(x)


class Bounded(torch.nn.Module):
    """A convolution whose weight is bounded before it is used."""

    def __init__(self, bound):
        super().__init__()
        self.conv, self.bound = torch.nn.Conv2d(2, 3, 3, padding=1), bound

    def forward(self, x):
        self.bound(self.conv.weight)
        return self.conv(x) * self.conv.weight.sum()


def renormalize(weight):
    weight.data = torch.renorm(weight.data, p=2, dim=0, maxnorm=0.2)


def clamp_data(weight):
    weight.data.clamp_(-0.1, 0.1)


@torch.no_grad()
def clamp(weight):
    weight.clamp_(-0.1, 0.1)


MODELS = {
    "codebook": Codebook,
    "follower": Follower,
    "renormalized": lambda: Bounded(renormalize),
    "clamped data": lambda: Bounded(clamp_data),
    "clamped": lambda: Bounded(clamp),
}


@pytest.mark.parametrize("layout", ["owner", "sharded", "replicated"])
@pytest.mark.parametrize("name", MODELS)
def test_each_call_writes_as_in_one_process(name, layout):
    torch.manual_seed(0)
    model = MODELS[name]().double()
    split = partitions(4)[-1]
    P_x, expected = grid(P_world, split), copy.deepcopy(model)
    with distdl.parameter_layout(layout):
        ours = distdl.distribute(model, P_x)
    problems = []
    for step in range(3):
        x = noise((2, 2, 6, 7), seed=step)
        y, other = whole(ours, distdl.scatter(x, P_x)), expected(x)
        y, other = (result if isinstance(result, tuple) else (result,) for result in (y, other))
        sum(each.sum() for each in y).backward()
        sum(each.sum() for each in other).backward()
        state, gradients = distdl.sequential_state_dict(ours), distdl.sequential_gradients(ours)
        if job.rank == 0:
            problems += [off(*pair) for pair in zip(y, other, strict=True)]
            problems += [off(state[key], value) for key, value in expected.state_dict().items()]
            problems += [off(gradients[key], p.grad) for key, p in expected.named_parameters() if p.grad is not None]
        for each in (ours, expected):
            torch.optim.SGD([p for p in each.parameters() if p.requires_grad], lr=0.1).step()
            each.zero_grad()
    assert_none([" ".join(filter(None, problems))])


def test_evaluation_writes_nothing():
    model = Codebook().double().eval()
    P_x = grid(P_world, partitions(4)[-1])
    ours = distdl.distribute(model, P_x).eval()
    ours(distdl.scatter(noise((2, 2, 6, 7)), P_x))
    state = distdl.sequential_state_dict(ours)
    assert_none([off(state[key], value) if job.rank == 0 else "" for key, value in model.state_dict().items()])


class Late(torch.nn.Module):
    """Writes into a weight after it was used."""

    def __init__(self, write):
        super().__init__()
        self.conv, self.write = torch.nn.Conv2d(2, 3, 1), write

    def forward(self, x):
        y = self.conv(x)
        self.write(self.conv.weight, y)
        return y


def replace(weight, y):
    weight.data = torch.zeros(1)


@pytest.mark.parametrize(
    ("write", "message"),
    [(lambda weight, y: clamp_data(weight), "after it has computed with it"), (replace, "of the same shape and dtype")],
    ids=["late", "other shape"],
)
def test_other_writes_are_refused(write, message):
    P_x = grid(P_world, [1, 1, job.size, 1])
    ours = distdl.distribute(Late(write), P_x)
    x = distdl.scatter(torch.rand(2, 2, 5, 7), P_x)
    raises_everywhere(NotImplementedError, message, lambda: ours(x), seconds=20.0)
