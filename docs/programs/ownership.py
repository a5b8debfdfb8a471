import torch

import distdl

world = distdl.Partition()
P_W = world.create_cartesian_topology_partition([2, 2])
P_01 = world.create_partition_inclusive([0, 1])
P_x = P_01.create_cartesian_topology_partition([1, 2])
linear = distdl.nn.DistributedLinear(P_x, P_x, P_W, 6, 4)

x = torch.ones(5, 3) if P_x.active else distdl.zero_volume_tensor()
linear(x).sum().backward()  # a zero-volume output sums to 0


def clip_gradients(model: torch.nn.Module, max_norm: float) -> float:
    """torch.nn.utils.clip_grad_norm_ over all ranks."""
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    square = float(torch.nn.utils.get_total_norm(gradients)) ** 2
    norm = float(world.allreduce_data(square)) ** 0.5
    for gradient in gradients:
        gradient.mul_(min(1.0, max_norm / (norm + 1e-6)))
    return norm


count = sum(p.numel() for p in linear.parameters())
norm = clip_gradients(linear, max_norm=1.0)
text = f"{count} numbers; the norm of the whole gradient is {norm:.3f}"
world.print_sequential(f"rank {world.rank}: {text}")
