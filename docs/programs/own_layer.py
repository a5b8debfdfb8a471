import torch

import distdl


class SubtractMean(distdl.nn.Module):
    """Subtracts the mean of a vector; P_x is its 1-d partition."""

    def __init__(self, P_x: distdl.Partition) -> None:
        super().__init__()
        self.P_x = P_x
        self._sum = distdl.nn.AllSumReduce(P_x, axes_reduce=[0])
        self._distdl_agree_among(P_x)

    def _distdl_module_setup(self, input: tuple[torch.Tensor, ...]) -> None:
        by_worker = self._distdl_global_structure(self.P_x)
        self._length = sum(shape[0] for shape, dtype in by_worker)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        if not self.P_x.active:
            return input.clone()
        return input - self._sum(input.sum(0, keepdim=True)) / self._length


world = distdl.Partition()
layer = SubtractMean(world.create_partition_inclusive([0, 1, 2]))

x = distdl.zero_volume_tensor()
if layer.P_x.active:  # put together: 0, 3, 3, 6, 6, 6
    x = torch.full((1 + world.rank,), 3.0 * world.rank)
x.requires_grad_()
y = layer(x)
(y * y).sum().backward()
world.print_sequential(f"rank {world.rank}: {y.tolist()}, {x.grad.tolist()}")
