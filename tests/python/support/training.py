"""A model to train, beside its sequential twin."""

import torch

import distdl
import distdl.nn as dnn
from support.blocks import block_of, grid
from support.ranks import job

KINDS = ("owner", "sharded", "replicated")

# Optimizers of torch.optim that compute element by element, with options.
OPTIMIZERS = {
    "ASGD": {"lr": 0.05, "t0": 5},
    "Adadelta": {},
    "Adagrad": {"lr": 0.05},
    "Adam": {"lr": 0.02, "amsgrad": True, "weight_decay": 0.1},
    "AdamW": {"lr": 0.02, "fused": True},
    "Adamax": {},
    "NAdam": {},
    "RAdam": {"lr": 0.02},
    "RMSprop": {"centered": True, "momentum": 0.5},
    "Rprop": {},
    "SGD": {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
}


def split(size):
    """Two factors, as equal as 1, 2, 3 and 4 allow."""
    return (2, size // 2) if size % 2 == 0 else (1, size)


class Twins:
    """The same small network in one process and in blocks: features and rows split, three ways in which weights live.

    Every parameter has uneven blocks on some numbers of ranks, and no block at all on some ranks.
    """

    def __init__(self, P, kind="owner", dtype=torch.float64, seed=0, columns=None):
        rows, columns = split(P.size) if columns is None else (P.size // columns, columns)
        self.P_x, P_h = grid(P, [rows, 1]), grid(P, [rows, columns])
        self.dtype = dtype
        torch.manual_seed(seed)
        self.twin = torch.nn.Sequential(
            torch.nn.BatchNorm1d(6, dtype=dtype),  # first: a bias before it would have gradients of 0
            torch.nn.Linear(6, 5, dtype=dtype),
            torch.nn.Tanh(),
            torch.nn.Linear(5, 3, dtype=dtype),
        )
        with distdl.parameter_layout(kind):
            self.model = torch.nn.Sequential(
                dnn.DistributedBatchNorm1d(self.P_x, 6, dtype=dtype),
                dnn.DistributedLinear(self.P_x, P_h, grid(P, [rows, columns, 1]), 6, 5, dtype=dtype),
                torch.nn.Tanh(),
                dnn.DistributedLinear(P_h, self.P_x, grid(P, [rows, 1, columns]), 5, 3, dtype=dtype),
            )
        self.loss = dnn.DistributedMSELoss(self.P_x)
        distdl.load_sequential(self.model, self.twin.state_dict())

    def batch(self, number):
        """Input and target of a step, whole."""
        generator = torch.Generator().manual_seed(1000 + number)
        return (torch.randn(7, n, generator=generator, dtype=torch.float64).to(self.dtype) for n in (6, 3))

    def both(self, make):
        """The results of a function of (model, step) for the twin and for the model; step(number) gives the loss."""
        return make(self.twin, self.twin_loss), make(self.model, self.own_loss)

    def twin_loss(self, number, model=None):
        x, target = self.batch(number)
        return torch.nn.functional.mse_loss((model or self.twin)(x), target)

    def own_loss(self, number, model=None):
        x, target = (block_of(whole, self.P_x) for whole in self.batch(number))
        return self.loss((model or self.model)(x), target)

    def assert_equal(self, model=None, twin=None, rtol=1e-9, atol=1e-11):
        """The states are those of the twin; sums in another order move them by some roundings."""
        state = distdl.sequential_state_dict(model or self.model)
        for name, value in (twin or self.twin).state_dict().items() if job.rank == 0 else ():
            assert torch.allclose(state[name].double(), value.double(), rtol=rtol, atol=atol), (
                name,
                state[name],
                value,
            )
