"""Functions that move, join, part and order elements."""

import torch
import torch.nn.functional as F

from support.rules.functions import IMAGE, MATRIX, layer
from support.splitting import numbers


def overlapping(x):
    """Windows of two rows, each of which begins one row after the other."""
    size, stride = [*x.shape], [*x.stride()]
    return x.as_strided([*size[:2], size[2] - 1, 2, size[3]], [*stride[:3], stride[2], stride[3]])


SHAPES = {
    "pad": (lambda x: F.pad(x, (1, 2, 0, 3)), IMAGE),
    "pad and crop": (lambda x: F.pad(x, (-1, 2, 2, -3), value=1.5), IMAGE),
    "pad of the batch": (lambda x: F.pad(x, (0, 0, 0, 0, 0, 0, 2, 1), value=-1.0), IMAGE),
    "pad to twice the size": (lambda x: F.pad(x, (0, 0, 7, 6)), IMAGE),
    "pad by reflection": (lambda x: F.pad(x, (1, 2, 2, 1), mode="reflect"), IMAGE),
    "pad by replication": (lambda x: F.pad(x, (1, 2, 0, 1), mode="replicate"), IMAGE),
    "pad in a circle": (lambda x: F.pad(x, (1, 2, 2, 1), mode="circular"), IMAGE),
    "flip": (lambda x: torch.flip(x, [-1, 2]), IMAGE),
    "flip of arguments": (lambda x: x.flip(0, 2), IMAGE),
    "fliplr": (lambda x: x.fliplr(), IMAGE),
    "flipud": (lambda x: x.flipud(), IMAGE),
    "roll": (lambda x: torch.roll(x, (2, -1), (2, 3)), IMAGE),
    "roll far": (lambda x: torch.roll(x, 15, 2), IMAGE),
    "roll twice": (lambda x: x.roll((1, 2), (2, 2)), IMAGE),
    "roll of all": (lambda x: torch.roll(x, 5), IMAGE),
    "rot90": (lambda x: torch.rot90(x, 1, (2, 3)), IMAGE),
    "rolled constant": (lambda x: x + torch.roll(torch.arange(5.0, dtype=torch.float64), 2, 0), IMAGE),
    "pixel_shuffle": (lambda x: F.pixel_shuffle(x, 2), IMAGE),
    "pixel_unshuffle": (lambda x: F.pixel_unshuffle(x, 2), (2, 3, 6, 4)),
    "PixelShuffle": (layer(lambda: torch.nn.PixelShuffle(2)), IMAGE),
    "channel_shuffle": (lambda x: F.channel_shuffle(x, 2), IMAGE),
    "cat along rows": (lambda x: torch.cat([x[:, :, :2], x, x * 2], 2), IMAGE),
    "cat of parameters": (lambda x: torch.cat([numbers(2, 4, 1, 5), x], -2), IMAGE),
    "cat of nothing": (lambda x: torch.cat([x[:, :, :0], x], 2), IMAGE),
    "hstack": (lambda x: torch.hstack([x, x]), MATRIX),
    "vstack": (lambda x: torch.vstack([x, x * 2]), MATRIX),
    "dstack": (lambda x: torch.dstack([x, x]), MATRIX),
    "stack": (lambda x: torch.stack([x, x * 2], 1), IMAGE),
    "chunk": (lambda x: torch.chunk(x, 3, 2), IMAGE),
    "split": (lambda x: x.split([1, 5], -2), IMAGE),
    "unbind": (lambda x: x.unbind(1), IMAGE),
    "chunk of rows in uneven parts": (lambda x: [part * 2 for part in x.chunk(4, dim=2)], IMAGE),
    "split of columns by name": (lambda x: torch.split(x, split_size_or_sections=2, dim=-1), IMAGE),
    "tensor_split": (lambda x: torch.tensor_split(x, (1, 1, 4), 2), IMAGE),
    "unbind of the last": (lambda x: x.unbind(dim=-1)[1:4], IMAGE),
    "reshape": (lambda x: x.reshape(2, 2, 2, 3, 10), IMAGE),
    "flatten": (lambda x: x.flatten(1), IMAGE),
    "permute": (lambda x: x.permute(0, 2, 3, 1), IMAGE),
    "as_strided of overlapping windows": (overlapping, IMAGE),
    "as_strided in another order": (
        lambda x: overlapping(x.permute(1, 0, 3, 2).contiguous().permute(1, 0, 3, 2)),
        IMAGE,
    ),
    "as_strided across all": (lambda x: x.as_strided((4, 5), (7, 3)), IMAGE),
    "as_strided with equal strides": (lambda x: x.as_strided((5, 4), (1, 1)), MATRIX),
    "as_strided with equal strides and sizes": (lambda x: x.as_strided((5, 6, 6), (6, 1, 0)), MATRIX),
    "as_strided of the same": (lambda x: x.as_strided(x.shape, x.stride()), IMAGE),
    "sizes that are tensors": (lambda x: x.view(2, torch.div(8, 2, rounding_mode="trunc"), -1), IMAGE),
    "expand": (lambda x: x[:, :1].expand(-1, 3, -1, -1), IMAGE),
    "repeat": (lambda x: x.repeat(1, 2, 1, 1), IMAGE),
    "cumsum": (lambda x: x.cumsum(2), IMAGE),
    "renorm": (lambda x: torch.renorm(x, 2, 1, 0.5), IMAGE),
    "softmax": (lambda x: F.softmax(x, 2), IMAGE),
    "sort": (lambda x: x.sort(-1, descending=True), IMAGE),
    "topk": (lambda x: x.topk(2, 1), IMAGE),
    "diff": (lambda x: x.diff(dim=2), IMAGE),
    "normalize": (lambda x: F.normalize(x, dim=2), IMAGE),
}

SHAPES |= {
    "diff between others": (lambda x: x.diff(dim=2, prepend=x[:, :, :1] * 2, append=numbers(2, 4, 3, 5)), IMAGE),
    "trapezoid": (lambda x: torch.trapezoid(x, dx=0.5, dim=2), IMAGE),
    "trapezoid of places": (lambda x: torch.trapezoid(x, numbers(5)), IMAGE),
    "cumulative_trapezoid of places": (lambda x: torch.cumulative_trapezoid(x, x[0].sin(), dim=-2), IMAGE),
    "broadcast_tensors": (lambda x: torch.broadcast_tensors(x[:, :1], x[:1, :, :, :1]), IMAGE),
    "hsplit": (lambda x: x.hsplit(2), IMAGE),
    "vsplit": (lambda x: torch.vsplit(x, 2), IMAGE),
    "gradient": (lambda x: torch.gradient(x, dim=2, edge_order=2), IMAGE),
    "gradient of all": (lambda x: torch.gradient(x, spacing=0.5), IMAGE),
    "gradient by coordinates": (
        lambda x: torch.gradient(x, spacing=[numbers(6).sort().values, numbers(5).sort().values], dim=[2, 3]),
        IMAGE,
    ),
    "dsplit": (lambda x: torch.dsplit(x, [2, 3]), IMAGE),
    "msort": (lambda x: x.msort(), IMAGE),
    "atleast_3d": (lambda x: torch.atleast_3d(x), MATRIX),
    "softmax of torch.special": (lambda x: torch.special.softmax(x, 1), IMAGE),
}
