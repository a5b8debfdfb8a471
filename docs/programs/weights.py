import torch

import distdl
from distdl import nn

world = distdl.Partition()
P_image = world.create_cartesian_topology_partition([1, 1, 2, 2])
P_channel = world.create_cartesian_topology_partition([1, 4, 1, 1])
P_feature = world.create_cartesian_topology_partition([1, 4])
P_0 = world.create_partition_inclusive([0])
P_root = P_0.create_cartesian_topology_partition([1, 1])

torch.manual_seed(7)
model = torch.nn.Sequential(
    nn.DistributedConv2d(P_image, 1, 4, kernel_size=3, padding=1),
    nn.DistributedMaxPool2d(P_image, 2),
    nn.Repartition(P_image, P_channel),  # whole channels, to flatten
    torch.nn.Flatten(),
    nn.DistributedLinear(P_feature, P_root, P_feature, 64, 6),
)
torch.manual_seed(7)
sequential = torch.nn.Sequential(
    torch.nn.Conv2d(1, 4, kernel_size=3, padding=1),
    torch.nn.MaxPool2d(2),
    torch.nn.Identity(),
    torch.nn.Flatten(),
    torch.nn.Linear(64, 6),
)


def compare(when: str) -> None:
    # All ranks call it; the result is empty on all ranks but 0.
    whole = distdl.sequential_state_dict(model)
    if world.rank == 0:
        theirs = sequential.state_dict()
        equal = all(torch.equal(whole[name], theirs[name]) for name in theirs)
        print(f"{when}: {'equal' if equal else 'not equal'}")


shapes = {name: tuple(p.shape) for name, p in model.named_parameters()}
world.print_sequential(f"rank {world.rank}: {shapes}")

compare("constructed with the same seed")
with torch.no_grad():
    for parameter in sequential.parameters():
        parameter.mul_(2)
compare("after the sequential weights changed")
# All ranks call it; it loads the state of rank 0.
distdl.load_sequential(model, sequential.state_dict())
compare("after load_sequential")
