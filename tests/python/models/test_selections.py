"""Elements that a mask selects, split in all ways, beside the same model in one process."""

import pytest
import torch
import torch.nn.functional as F

import distdl
from support.blocks import grid
from support.models import Function
from support.ranks import job, raises_everywhere, together
from support.splitting import numbers, off_when_split, splits

P_world = distdl.Partition(job)
SHAPE = (4, 6, 5)


def rows(x):
    """A mask of rows of 5 elements."""
    return x[..., 0] > 0


class Masked(torch.nn.Module):
    """Predicts the rows that a mask hides, as masked autoencoders do."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.encoder, self.decoder = torch.nn.Linear(5, 7).double(), torch.nn.Linear(7, 5).double()
        self.loss = torch.nn.MSELoss()

    def forward(self, x):
        x, mask = x.clone(), rows(x)
        hidden = x[mask]
        x[mask] = 0.0
        return self.loss(self.decoder(F.gelu(self.encoder(x))[mask]), hidden)


def written(x):
    """Elements that are replaced by functions of themselves."""
    x = x.clone()
    x[x > 0] *= 2
    x[rows(x)] = x[rows(x)].sin()
    x[rows(x), :] += torch.arange(5.0, dtype=torch.float64)
    return x


def copied(x):
    """Elements of a tensor that is written into afterwards."""
    x = x.clone()
    selected = x[x > 0]
    x.mul_(3.0)
    return selected.sum(), x


CASES = {
    "mean": lambda x: x[x > 0].mean(),
    "mean of nothing": lambda x: x[x > 100].mean(),
    "sum of nothing": lambda x: x[x > 100].sum(),
    "mean of a half": lambda x: (2e4 * (1 + x.sigmoid())).half()[x > 0].mean().double(),
    "mean as another type": lambda x: x.float()[x > 0].mean(dtype=torch.float64),
    "masked_select": lambda x: x.masked_select(x > 0).mean(),
    "masked_select of a broadcast mask": lambda x: torch.masked_select(x, x[0] > 0).sum(),
    "numbers that are not": lambda x: (lambda y: y[~torch.isnan(y)].mean())((x - 0.5).log()),
    "derivatives that are infinite elsewhere": lambda x: (x[x > 0].log() + x[x > 0].sqrt()).sum(),
    "a function of 1 and more": lambda x: (1 + x.abs())[x > 0].acosh().sum(),
    "any and all": lambda x: ((x[x > 0] > 1).any(), (x[x > 0] > 0).all(), (x[x > 100] > 0).all()),
    "mean of rows": lambda x: x[rows(x)].mean(0),
    "sum of rows, kept": lambda x: x[rows(x)].sum(0, keepdim=True),
    "mean in rows": lambda x: x[rows(x)].mean(-1, keepdim=True).square().sum(),
    "mean of all dimensions": lambda x: x[rows(x)].mean((0, 1), keepdim=True),
    "mask of a constant": lambda x: x[numbers(*SHAPE) > 0].mean(),
    "masks from equal functions": lambda x: (x[x > 0] - x.cos()[torch.gt(x, 0)]).abs().mean(),
    "where": lambda x: torch.where(x[x > 0] > 1, x[x > 0], 0.0).mean(),
    "in place": lambda x: x[x > 0].mul_(2.0).add_(1.0).mean(),
    "softmax": lambda x: x[rows(x)].softmax(-1).log().sum(),
    "log_softmax": lambda x: F.log_softmax(x[rows(x)], dim=1).square().sum(),
    "layer_norm": lambda x: F.layer_norm(x[rows(x)], (5,), numbers(5)).square().sum(),
    "matmul": lambda x: (x[rows(x)] @ numbers(5, 3)).square().mean(),
    "embedding": lambda x: F.embedding(x.argmax(-1)[rows(x)], numbers(5, 3)).sum(0),
    "mse_loss": lambda x: F.mse_loss(x[x > 0.1], x.cos()[x > 0.1]),
    "losses of elements": lambda x: F.huber_loss(x[x > 0.1], x.cos()[x > 0.1], reduction="none").square().sum(),
    "L1Loss": lambda x: torch.nn.L1Loss(reduction="sum")(x[rows(x)], x.cos()[rows(x)]),
    "binary_cross_entropy": lambda x: F.binary_cross_entropy(x.sigmoid()[x > 0], x.detach().cos().square()[x > 0]),
    "pos_weight": lambda x: F.binary_cross_entropy_with_logits(
        x[rows(x)], x.detach().sigmoid()[rows(x)], pos_weight=torch.arange(1.0, 6.0)),
    "cross_entropy": lambda x: F.cross_entropy(x[rows(x)], x.argmax(-1)[rows(x)]),
    "CrossEntropyLoss": lambda x: torch.nn.CrossEntropyLoss(numbers(5).exp(), label_smoothing=0.1)(
        x[rows(x)], x.argmin(-1)[rows(x)]),
    "nll_loss of a sample": lambda x: F.nll_loss(
        x[x[:, 0, 0] > 0].log_softmax(1), x.argmax(1)[x[:, 0, 0] > 0], reduction="none").sum(),
    "written": written,
    "copied": copied,
    "masked autoencoder": Masked,
}  # fmt: skip


@pytest.mark.shared
@pytest.mark.parametrize("name", CASES)
def test_selected_elements(name):
    function = CASES[name]
    make = function if function is Masked else lambda: Function(function)
    problems = []
    for split in splits(len(SHAPE)):
        problems += off_when_split(make, numbers(*SHAPE, seed=9), split)
    assert not any(together(problems)), problems


REFUSED = {
    "shape": (lambda x: x[x > 0].shape[0], "shape of elements that a mask selects"),
    "len": (lambda x: len(x[x > 0]), "elements that a mask selects"),
    "max": (lambda x: x[x > 0].max(), "max of elements that a mask selects"),
    "result": (lambda x: x[x > 0], "elements that a mask selects are used where the model returns it"),
    "reshape": (lambda x: x[x > 0].reshape(-1).mean(), "reshape of elements that a mask selects"),
    "softmax of all": (lambda x: x[x > 0].softmax(0), "softmax of elements that a mask selects"),
    "cat": (lambda x: torch.cat([x[x > 0], x[x < 0]]), "different masks"),
    "different masks": (lambda x: x[x > 0] - x[x < 0], "different masks"),
    "a mask that was drawn": (lambda x: x[torch.rand_like(x) > 0] - x[torch.rand_like(x) > 0], "different masks"),
    "mask of selected": (lambda x: x[x > 0][x[x > 0] > 1], "getitem of elements that a mask selects"),
    "other elements": (lambda x: x[rows(x)] + x[:, :, 0].sum(0).reshape(-1, 1)[:1], "and of others"),
    "weights": (lambda x: F.mse_loss(x[x > 0], x[x > 0], weight=x[x > 0]), "mse_loss of elements"),
    "batchmean": (lambda x: F.kl_div(x[rows(x)], x[rows(x)], reduction="batchmean"), "kl_div of elements"),
    "another index": (lambda x: x.clone().__setitem__(x < 0, x[x > 0]), "setitem of elements that different masks"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_depends_on_the_number_of_selected_elements_is_refused(name):
    function, words = REFUSED[name]
    P_x = grid(P_world, [1, P_world.size, 1])
    ours, x = distdl.distribute(Function(function), P_x), distdl.scatter(numbers(*SHAPE), P_x)
    error = raises_everywhere(NotImplementedError, words, lambda: ours(x))
    assert "mask.sum() is the number" in error


@pytest.mark.parametrize(
    "function",
    [lambda x: x[x > 0].mean(3), lambda x: x.long()[x > 0].mean(), lambda x: x[rows(x)] * torch.ones(4)],
    ids=["dimension", "mean of integers", "other size"],
)
def test_errors_of_torch_are_raised(function):
    P_x = grid(P_world, [1, P_world.size, 1])
    with pytest.raises((RuntimeError, IndexError)) as expected:
        function(numbers(*SHAPE))
    ours, x = distdl.distribute(Function(function), P_x), distdl.scatter(numbers(*SHAPE), P_x)
    kind = IndexError if expected.type is IndexError else RuntimeError  # torch may have a class of its own with values
    raises_everywhere(kind, ".", lambda: ours(x))
