import torch

import distdl
from distdl.nn import DistributedConv2d, DistributedLinear, DistributedMaxPool2d, Repartition

P_world = distdl.Partition()
P_image = P_world.create_cartesian_topology_partition([1, 1, 2, 2])
P_channel = P_world.create_cartesian_topology_partition([1, 4, 1, 1])
P_feature = P_world.create_cartesian_topology_partition([1, 4])
P_root = P_world.create_partition_inclusive([0]).create_cartesian_topology_partition([1, 1])

torch.manual_seed(7)
model = torch.nn.Sequential(
    DistributedConv2d(P_image, 1, 4, kernel_size=3, padding=1),
    DistributedMaxPool2d(P_image, 2),
    Repartition(P_image, P_channel),  # so that each rank has whole channels to flatten
    torch.nn.Flatten(),
    DistributedLinear(P_feature, P_root, P_feature, 64, 6),
)
torch.manual_seed(7)
sequential = torch.nn.Sequential(
    torch.nn.Conv2d(1, 4, kernel_size=3, padding=1),
    torch.nn.MaxPool2d(2),
    torch.nn.Identity(),
    torch.nn.Flatten(),
    torch.nn.Linear(64, 6),
)


def is_equal() -> bool:
    state = distdl.sequential_state_dict(model)  # on all ranks; whole parameters on rank 0
    return P_world.rank != 0 or all(torch.equal(state[name], value) for name, value in sequential.state_dict().items())


shapes = {name: tuple(value.shape) for name, value in model.state_dict().items()}
P_world.print_sequential(f"rank {P_world.rank}: {shapes}")
same = is_equal()

with torch.no_grad():
    for parameter in sequential.parameters():
        parameter.mul_(2)
different = not is_equal() or P_world.rank != 0
distdl.load_sequential(model, sequential.state_dict())  # rank 0's is loaded
P_world.print_sequential(f"rank {P_world.rank}: {same}, {different}, {is_equal()}")
