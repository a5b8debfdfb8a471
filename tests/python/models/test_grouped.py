"""Mixtures of experts that sort tokens by expert, as those of transformers do."""

import pytest
import torch

import distdl
from support.blocks import grid
from support.ranks import job
from support.versions import TORCH

pytestmark = pytest.mark.ranks(1, 2, 3)
grouped_mm = torch.nn.functional.grouped_mm if TORCH >= (2, 10) else torch._grouped_mm


class Experts(torch.nn.Module):
    """Two experts of five for each token."""

    def __init__(self, features=8, hidden=16, experts=5):
        super().__init__()
        self.router = torch.nn.Linear(features, experts)
        self.up = torch.nn.Parameter(torch.randn(experts, hidden, features) / 4)
        self.down = torch.nn.Parameter(torch.randn(experts, features, hidden) / 4)

    def forward(self, x):
        tokens = x.reshape(-1, x.shape[-1])
        weights, chosen = self.router(tokens).softmax(-1).topk(2)
        kind, order = torch.sort(chosen.reshape(-1))
        counts = torch.histc(kind.float(), bins=len(self.up), min=0, max=len(self.up) - 1)
        ends = torch.cumsum(counts, dim=0, dtype=torch.int32)
        y = grouped_mm(tokens[order // 2], self.up.transpose(-2, -1), offs=ends).relu()
        y = grouped_mm(y, self.down.transpose(-2, -1), offs=ends)
        y = y * weights.reshape(-1)[order, None]
        back = torch.empty_like(order)
        back[order] = torch.arange(len(order))
        return y[back].reshape(len(tokens), 2, -1).sum(1).reshape(x.shape)


@pytest.mark.parametrize("shape", [[1, 0, 1], [0, 1, 1]], ids=["tokens", "batch"])
@pytest.mark.parametrize("plan", [None, {"up": "grouped_gemm", "down": "grouped_gemm"}], ids=["whole", "experts"])
def test_mixture_of_experts(P_world, shape, plan):
    torch.manual_seed(0)
    model, x = Experts(), torch.randn(3, 4, 8)
    P_x = grid(P_world, [n or job.size for n in shape])
    ours = distdl.distribute(model, P_x, plan=plan)
    y = distdl.gather(ours(distdl.scatter(x, P_x)), ours.output_partition)
    y.square().sum().backward()
    gradients = distdl.sequential_gradients(ours)
    if plan is not None:
        assert ours.up.numel() <= -(-5 // job.size) * 128
    if job.rank == 0:
        expected = model(x)
        expected.square().sum().backward()
        assert torch.allclose(y, expected, rtol=1e-4, atol=1e-6)
        for name, own in model.named_parameters():
            assert torch.allclose(gradients[name], own.grad, rtol=1e-3, atol=1e-5)
    assert "grouped_mm" in str(distdl.report(ours))


def test_a_batch_of_matrices(P_world):
    a, b = torch.randn(4, 8, 8), torch.randn(4, 8, 16)
    P_x = grid(P_world, [job.size, 1, 1])
    ours = distdl.distribute(grouped_mm, P_x)
    y = distdl.gather(ours(distdl.scatter(a, P_x), distdl.scatter(b, P_x)), ours.output_partition)
    if job.rank == 0:
        assert torch.allclose(y, a @ b, atol=1e-5)
