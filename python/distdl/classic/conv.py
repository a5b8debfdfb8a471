"""Convolutions as programs written for DistDL know them: old positions, and a class for each thing that is split."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import torch

from distdl.classic.arguments import old_arguments
from distdl.classic.buffer import MPIBufferManager
from distdl.classic.keys import OldLayer
from distdl.nn import conv
from distdl.nn.base.layer import Layer
from distdl.partitions.construction import PartitionLike, grid_of, is_partition
from distdl.partitions.partition import Partition

ORDER = "in_channels out_channels kernel_size stride padding padding_mode dilation groups bias"


class _OldConv(OldLayer):
    """The base class of the three forms."""

    dims: ClassVar[int]

    @property
    def P_wb_cart(self) -> Partition:
        """The workers that own weight and bias, or the weight alone where there is no bias."""
        return self.partition_of(next(reversed(self.layouts.values())).owner_grid)


@old_arguments(f"P_x {ORDER}", conv.DistributedConv2d, buffer_manager=None)
class DistributedFeatureConvBase(_OldConv):
    """A convolution that splits space: our layer, whose parameters are its own. Arguments are those of torch.nn."""


@old_arguments(f"P_x P_y P_w {ORDER}", conv.DistributedConv2d, buffer_manager=None)
class _SplitsChannels(_OldConv):
    """A convolution with the partitions of input and output, and the workers that compute."""

    old_names = {"weight": "conv_layer.weight", "bias": "conv_layer.bias"}

    def layer_within(self, name: str) -> torch.nn.Module:
        kind = getattr(torch.nn, f"Conv{self.dims}d")
        return kind(self.in_channels, self.out_channels, self.kernel_size, bias=False, device="meta")


class DistributedChannelConvBase(_SplitsChannels):
    """A convolution that splits channels, with its parameters in ``conv_layer``."""


class DistributedGeneralConvBase(_SplitsChannels):
    """A convolution that splits channels and space, with its parameters in ``conv_layer``."""


def _forms(kind: str, base: type[_OldConv], partitions: str) -> tuple[type[_OldConv], type[_OldConv], type[_OldConv]]:
    """The classic classes of a form for one, two and three dimensions of space."""

    def member(dims: int) -> type[_OldConv]:
        name = f"Distributed{kind}{dims}d"
        ours = getattr(conv, name)
        made = type(name, (base, ours), {"__doc__": ours.__doc__, "__module__": __name__})
        return old_arguments(f"{partitions} {ORDER}", buffer_manager=None)(made)

    return member(1), member(2), member(3)


DistributedFeatureConv1d, DistributedFeatureConv2d, DistributedFeatureConv3d = _forms(
    "FeatureConv", DistributedFeatureConvBase, "P_x"
)
DistributedChannelConv1d, DistributedChannelConv2d, DistributedChannelConv3d = _forms(
    "ChannelConv", DistributedChannelConvBase, "P_x P_y P_w"
)
DistributedGeneralConv1d, DistributedGeneralConv2d, DistributedGeneralConv3d = _forms(
    "GeneralConv", DistributedGeneralConvBase, "P_x P_y P_w"
)


class _Selecting(type):
    """The type of classes whose call makes an instance of another class, which then counts as theirs."""

    dims: int
    ours: type[Layer]
    feature: type[_OldConv]
    channel: type[_OldConv]
    general: type[_OldConv]

    def __call__(cls, P_x: object, *args: object, **kwargs: object) -> object:
        """An instance of the class for these partitions."""
        behind = list(args)
        named = {name: kwargs.pop(name) for name in ("P_y", "P_w") if name in kwargs}
        if behind and (behind[0] is None or is_partition(behind[0])):
            for name in ("P_y", "P_w"):
                if name not in named and behind and not isinstance(behind[0], int):
                    named[name] = behind.pop(0)
            if behind and (behind[0] is None or isinstance(behind[0], MPIBufferManager)):
                behind.pop(0)
        made, partitions = cls._for(P_x, named.get("P_y"), named.get("P_w"))
        if made is cls.ours:
            kwargs.pop("buffer_manager", None)
        construct: Callable[..., Layer] = made
        return construct(P_x, *partitions, *behind, **kwargs)

    def _for(cls, P_x: object, P_y: object, P_w: object) -> tuple[type[Layer], tuple[object, ...]]:
        """The class for these partitions, and those of them that it takes behind P_x."""
        if P_y is None and P_w is None:
            return cls.feature, ()
        if P_y is None or P_w is None:
            return cls.ours, (P_y, P_w)  # raises on all ranks
        shapes = [_shape_of(P) for P in (P_x, P_y, P_w)]
        dims = cls.dims
        splits_space = any(n != 1 for shape in shapes if len(shape) > dims for n in shape[-dims:])
        return cls.general if splits_space else cls.channel, (P_y, P_w)

    def from_sequential(
        cls, module: torch.nn.Module, P_x: PartitionLike, P_y: object = None, P_w: object = None, **options: object
    ) -> Layer:
        """Call :meth:`distdl.nn.Layer.from_sequential` of the class for these partitions."""
        made, partitions = cls._for(P_x, P_y, P_w)
        return made.from_sequential(module, P_x, *partitions, **options)  # type: ignore[arg-type]

    def __instancecheck__(cls, instance: object) -> bool:
        return super().__instancecheck__(instance) or issubclass(type(instance), cls._members())

    def __subclasscheck__(cls, subclass: type) -> bool:
        return super().__subclasscheck__(subclass) or issubclass(subclass, cls._members())

    def _members(cls) -> tuple[type, ...]:
        return cls.feature, cls.channel, cls.general


def _shape_of(P: object) -> tuple[int, ...]:
    return grid_of(P).shape if is_partition(P) else ()


class DistributedConvSelector(metaclass=_Selecting):
    """Makes a convolution of the class for what the partitions split: space, channels, or both.

    Args:
        P_x: the partition of the input.
        P_y, P_w: the partition of the output and the workers that compute, both or neither of them.
        args, kwargs: those of the class that it makes.
    """

    feature: type[_OldConv] = DistributedFeatureConvBase
    channel: type[_OldConv] = DistributedChannelConvBase
    general: type[_OldConv] = DistributedGeneralConvBase


class DistributedConv1d(DistributedConvSelector):
    """A convolution over one dimension of space."""

    dims, ours = 1, conv.DistributedConv1d
    feature, channel, general = DistributedFeatureConv1d, DistributedChannelConv1d, DistributedGeneralConv1d


class DistributedConv2d(DistributedConvSelector):
    """A convolution over two dimensions of space."""

    dims, ours = 2, conv.DistributedConv2d
    feature, channel, general = DistributedFeatureConv2d, DistributedChannelConv2d, DistributedGeneralConv2d


class DistributedConv3d(DistributedConvSelector):
    """A convolution over three dimensions of space."""

    dims, ours = 3, conv.DistributedConv3d
    feature, channel, general = DistributedFeatureConv3d, DistributedChannelConv3d, DistributedGeneralConv3d
