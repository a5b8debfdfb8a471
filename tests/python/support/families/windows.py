"""Convolution, pooling, interpolation and padding: a few examples, since these layers have tables of their own.

No result is as long as its input where it may be split: its blocks are balanced, whatever those of the input are.
"""

import torch

from support.families import Example
from support.tensors import values


def split(make, *shape, whole=(), second=True):
    """Each dimension along its own axis of P_x. The same module on all ranks."""
    cut = tuple(range(len(shape)))

    def twin():
        torch.manual_seed(1)
        return make().double()

    return Example(twin, lambda: (values(shape),), len(shape), (cut,), (cut,), whole=whole, second=second)


EXAMPLES = {
    "Conv1d": split(lambda: torch.nn.Conv1d(2, 3, 3, stride=2, padding=1, dilation=2), 2, 2, 9, whole=(1,)),
    "Conv2d": split(lambda: torch.nn.Conv2d(4, 2, (2, 3), groups=2, bias=False), 2, 4, 5, 4, whole=(1,)),
    "Conv2d around": split(
        lambda: torch.nn.Conv2d(1, 2, 3, padding=(2, 0), padding_mode="circular"), 1, 1, 5, 6, whole=(1,)
    ),
    "Conv3d": split(lambda: torch.nn.Conv3d(1, 2, 2), 1, 1, 3, 4, 3, whole=(1,)),
    "ConvTranspose2d": split(lambda: torch.nn.ConvTranspose2d(2, 3, 3, stride=2, padding=1), 1, 2, 3, 4, whole=(1,)),
    "MaxPool2d": split(lambda: torch.nn.MaxPool2d(3, 2, padding=1), 2, 2, 5, 6),
    "AvgPool1d": split(lambda: torch.nn.AvgPool1d(2, ceil_mode=True), 2, 3, 7),
    "AdaptiveMaxPool1d": split(lambda: torch.nn.AdaptiveMaxPool1d(3), 2, 2, 7),
    "AdaptiveAvgPool2d": split(lambda: torch.nn.AdaptiveAvgPool2d((2, 1)), 1, 2, 5, 6),
    "AdaptiveMaxPool2d to one": split(lambda: torch.nn.AdaptiveMaxPool2d(1), 2, 2, 4, 3),
    "AdaptiveAvgPool1d to one": split(lambda: torch.nn.AdaptiveAvgPool1d(1), 2, 2, 7),
    "LPPool1d": split(lambda: torch.nn.LPPool1d(2, 3, stride=2), 1, 2, 8),
    "Upsample": split(lambda: torch.nn.Upsample(scale_factor=1.5, mode="bilinear"), 1, 2, 4, 6),
    "ConstantPad2d": split(lambda: torch.nn.ConstantPad2d((1, 2, 0, -1), 1.5), 2, 1, 4, 3),
    "ReflectionPad1d": split(lambda: torch.nn.ReflectionPad1d((2, 1)), 2, 1, 4),
}
