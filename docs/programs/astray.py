import textwrap

import torch

import distdl

P = distdl.Partition()
layer, another = (distdl.nn.AllSumReduce(P, [0]) for _ in range(2))
x = torch.ones(3, requires_grad=True)


def show(error: RuntimeError) -> None:
    if P.rank == 0:
        print(textwrap.fill(str(error), 80, subsequent_indent="    "), end="\n\n")


# The same layers in another order
try:
    for one in (layer, another) if P.rank == 0 else (another, layer):
        one(x)
except RuntimeError as error:
    show(error)

# A backward pass on one rank, while the other is at its next forward pass
y = layer(x)
try:
    y.sum().backward() if P.rank == 0 else layer(x)
except RuntimeError as error:
    show(error)

# One more batch on one rank, while the other rank is done
try:
    for _ in range(3 if P.rank == 0 else 2):
        layer(x)
except RuntimeError as error:
    show(error)
