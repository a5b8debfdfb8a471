import torch

import distdl

world = distdl.Partition()
P_x = world.create_cartesian_topology_partition([1, 1, 1, world.size])
halo = distdl.nn.HaloExchange(P_x, [0, 0, 0, 1])
conv = torch.nn.Conv2d(1, 1, 3, padding=(1, 0), bias=False)
with torch.no_grad():
    conv.weight.fill_(1.0)

x = torch.ones(1, 1, 4, 8, requires_grad=True)  # this rank's columns of the image
started = halo.start(x)  # the columns next to these begin to travel
inside = conv(x)  # needs only this rank's columns
grown = halo.wait(started)
y = torch.cat([conv(grown[..., :3]), inside, conv(grown[..., -3:])], dim=-1)
# In the backward pass, wait starts the adjoint and start waits for it.
# The gradient of `inside` is computed between them.
y.sum().backward()

row, gradient = y[0, 0, 1].int().tolist(), x.grad[0, 0, 1].int().tolist()
world.print_sequential(f"rank {world.rank}: row 1 of y {row}, of x.grad {gradient}")
