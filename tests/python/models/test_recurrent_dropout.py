"""Recurrent networks with dropout between their layers are recorded layer by layer."""

import pytest
import torch

import distdl
from support.blocks import grid
from support.ranks import job, together

P_world = distdl.Partition(job)
LAYERS = {
    "LSTM": lambda **options: torch.nn.LSTM(4, 5, 3, dropout=0.5, **options),
    "LSTM with projections": lambda **options: torch.nn.LSTM(4, 5, 2, dropout=0.3, proj_size=2, **options),
    "GRU without biases": lambda **options: torch.nn.GRU(4, 5, 3, False, dropout=0.5, **options),
    "RNN": lambda **options: torch.nn.RNN(4, 5, 2, dropout=0.5, **options),
    "RNN with relu": lambda **options: torch.nn.RNN(4, 5, 2, "relu", dropout=1.0, **options),
}


class Recurrent(torch.nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        y, states = self.layer(x)
        return y, *(states if isinstance(states, tuple) else (states,))


def made(name, is_batch_first, is_bidirectional):
    torch.manual_seed(2)
    return Recurrent(LAYERS[name](batch_first=is_batch_first, bidirectional=is_bidirectional).double())


def loss_of(results):
    return sum((y * y).sum() for y in results)


@pytest.mark.ranks(1, 2, 3)
@pytest.mark.parametrize("is_bidirectional", [False, True])
@pytest.mark.parametrize("is_batch_first", [False, True])
@pytest.mark.parametrize("name", LAYERS)
def test_numbers_of_one_process(name, is_batch_first, is_bidirectional):
    P_x = grid(P_world, [job.size, 1, 1] if is_batch_first else [1, job.size, 1])
    shape = (4, 3, 4) if is_batch_first else (3, 4, 4)
    x = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(6))
    model = made(name, is_batch_first, is_bidirectional)
    ours = distdl.distribute(model, P_x, as_sequential=True)
    for is_training in (True, False):
        for each in (model, ours):
            each.train(is_training).zero_grad()
        torch.manual_seed(5)
        expected = model(x)
        loss_of(expected).backward()
        after = torch.rand(())
        torch.manual_seed(5)
        results = distdl.gather(ours(distdl.scatter(x, P_x)), ours.output_partition)
        assert torch.rand(()) == after
        loss_of(results).backward()
        gradients = distdl.sequential_gradients(ours)
        if job.rank == 0:
            torch.testing.assert_close(results, expected, rtol=1e-13, atol=1e-14)
            own = {key: parameter.grad for key, parameter in model.named_parameters()}
            torch.testing.assert_close(gradients, own, rtol=1e-12, atol=1e-13)


@pytest.mark.ranks(2)
def test_the_same_numbers_on_each_partition():
    results = []
    x = torch.randn(4, 3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(6))
    for split in ([2, 1, 1], [1, 2, 1]):
        torch.manual_seed(7)
        P_x = grid(P_world, split)
        ours = distdl.distribute(made("LSTM", True, False), P_x)
        torch.manual_seed(8)
        results.append(distdl.gather(ours(distdl.scatter(x, P_x)), ours.output_partition)[0])
    assert all(together(torch.allclose(*results, rtol=1e-12, atol=1e-13)))
    assert job.rank or bool((results[0] != 0).any())
