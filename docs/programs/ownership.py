import torch

import distdl

P_world = distdl.Partition()
P_x = P_world.create_cartesian_topology_partition([1, 1, P_world.size])
torch.manual_seed(0)
conv = distdl.nn.DistributedConv1d(P_x, 2, 4, kernel_size=3, padding=1)
conv(torch.ones(1, 2, 5)).sum().backward()


def clip_gradients(parameters: list[torch.nn.Parameter], max_norm: float) -> float:
    """torch.nn.utils.clip_grad_norm_ over all ranks."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    mine = float(torch.nn.utils.get_total_norm(gradients)) ** 2
    norm = float(P_world.allreduce_data([mine])[0]) ** 0.5
    for gradient in gradients:
        gradient.mul_(min(1.0, max_norm / (norm + 1e-6)))
    return norm


count = sum(p.numel() for p in conv.parameters())
norm = clip_gradients(list(conv.parameters()), max_norm=1.0)
P_world.print_sequential(f"rank {P_world.rank}: {count} numbers, norm of the whole gradient {norm:.3f}")
