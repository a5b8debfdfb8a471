import torch

import distdl


class FeatureScale(distdl.nn.Layer):
    """Multiplies each feature by a weight; P_x is [batch, features], of which both may be split."""

    def __init__(self, P_x: distdl.Partition, num_features: int, bias: bool = True) -> None:
        super().__init__(locals())

    def check_options(self) -> None:
        if self.num_features < 1:
            raise ValueError(f"FeatureScale: num_features={self.num_features}; it must be at least 1")
        to_1, to_0 = torch.nn.init.ones_, torch.nn.init.zeros_
        self.declare_parameter("weight", self.P_x, [self.num_features], [1], initialize=to_1)
        self.declare_parameter("bias", self.P_x, [self.num_features], [1], initialize=to_0, exists=self.passed["bias"])

    def set_up(self) -> None:
        self.check_balanced(1, self.num_features, "num_features")

    def compute(self, input: torch.Tensor) -> torch.Tensor:
        if not self.P_x.active:
            return self.without_part(input)
        weight, *bias = self.parameters_in_use()
        return input * weight + bias[0] if bias else input * weight


world = distdl.Partition()
P_x = world.create_cartesian_topology_partition([2, 2])
layer = FeatureScale(P_x, 5)
layer(torch.ones(1, 3 - world.rank % 2)).sum().backward()
gradient = None if layer.weight.grad is None else layer.weight.grad.tolist()
world.print_sequential(f"rank {world.rank}: weight {list(layer.weight.shape)}, gradient {gradient}")

state = distdl.sequential_state_dict(layer)
if world.rank == 0:
    print({name: list(value.shape) for name, value in state.items()})
