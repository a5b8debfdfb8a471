import torch

import distdl


class SubtractMean(distdl.nn.Module):
    """Subtracts the mean of a vector that is partitioned by the 1-d partition P_x."""

    def __init__(self, P_x: distdl.Partition) -> None:
        super().__init__()
        self.P_x = P_x
        self._sum = distdl.nn.AllSumReduce(P_x, axes_reduce=[0])
        self._distdl_agree_among(P_x)

    def _distdl_module_setup(self, input: tuple[torch.Tensor, ...]) -> None:
        self._length = sum(shape[0] for shape, dtype in self._distdl_global_structure(self.P_x))

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        if not self.P_x.active:
            return input.clone()
        return input - self._sum(input.sum(0, keepdim=True)) / self._length


P_world = distdl.Partition()
layer = SubtractMean(P_world.create_partition_inclusive([0, 1, 2]))

x = distdl.zero_volume_tensor()
if layer.P_x.active:
    x = torch.full((1 + P_world.rank,), float(P_world.rank))  # 0, 1, 1, 2, 2, 2
x.requires_grad_()
y = layer(x)
(y * y).sum().backward()
P_world.print_sequential(f"rank {P_world.rank}: {y.tolist()}, gradient {x.grad.tolist()}")
