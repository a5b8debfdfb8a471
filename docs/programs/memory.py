from collections.abc import Iterable

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import distdl

P_world = distdl.Partition()
P_x = P_world.create_cartesian_topology_partition([1, 1, P_world.size, 1, 1])  # volumes, cut into slabs
shape = (1, 1, 32, 32, 32)
network = nn.Sequential(
    nn.Conv3d(1, 32, 3, padding=1), nn.BatchNorm3d(32), nn.ReLU(),
    nn.Conv3d(32, 64, 3, padding=1), nn.BatchNorm3d(64), nn.ReLU(),
    nn.Conv3d(64, 1, 1),
)  # fmt: skip


class Checkpointed(nn.Module):
    """The network, which computes its first two parts again in the backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = checkpoint(self.network[:3], x, use_reentrant=False)
        x = checkpoint(self.network[3:6], x, use_reentrant=False)
        return self.network[6](x)


def mib(tensors: Iterable[torch.Tensor]) -> float:
    """MiB of the memory that the tensors are in, counted once."""
    memory = (t.untyped_storage() for t in tensors if isinstance(t, torch.Tensor))
    return sum({s.data_ptr(): s.nbytes() for s in memory if s.nbytes()}.values()) / 2**20


def count(title: str, network: nn.Module, layout: str = "owner", half: bool = False) -> None:
    """Train one step, and print what this rank has in memory."""
    with distdl.parameter_layout(layout):
        model = distdl.distribute(network, P_x)
    parameters, saved = list(model.parameters()), []
    optimizer = torch.optim.AdamW(parameters)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            y = model(distdl.scatter(torch.rand(shape), P_x))
        loss = y.float().square().sum()
    kept = mib([*saved, *parameters]) - mib(parameters)
    loss.backward()
    optimizer.step()
    gradients = [p.grad for p in parameters if p.grad is not None]
    states = [value for state in optimizer.state.values() for value in state.values()]
    memory = f"weights {mib(parameters):.2f}, gradients {mib(gradients):.2f}, AdamW {mib(states):.2f}"
    P_world.print_sequential(f"{title}, rank {P_world.rank}: {memory}, kept {kept:.2f} MiB")
    if title == "replicated" and P_world.rank == 0:
        print(f"report: {distdl.report(model).memory / 2**20:.2f} MiB")


for layout in ("owner", "sharded", "replicated"):
    count(layout, network, layout)
count("checkpoints", Checkpointed())
count("bfloat16", network, half=True)

proposals = distdl.plans(network, P_world, shape)
if P_world.rank == 0:
    for proposal in sorted(proposals, key=lambda proposal: proposal.memory)[:1]:
        print(f"plans: {proposal.memory / 2**20:.2f} MiB on {proposal}")
