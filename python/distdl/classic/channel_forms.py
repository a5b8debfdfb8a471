"""The convolutions that only the descendant has, with its further options: transposed, all-gather, reduce-scatter."""

from __future__ import annotations

from distdl.classic.keys import OldLayer
from distdl.nn import conv
from distdl.nn.base.layer import Layer
from distdl.partitions.construction import PartitionLike

Size = int | tuple[int, ...]


class _Conv(OldLayer):
    def __init__(
        self,
        P_x: PartitionLike,
        in_channels: int,
        out_channels: int,
        kernel_size: Size,
        stride: Size = 1,
        padding: Size | str = 0,
        dilation: Size = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        **more: object,
    ) -> None:
        self.construct(locals())


class _ConvTranspose(OldLayer):
    def __init__(
        self,
        P_x: PartitionLike,
        in_channels: int,
        out_channels: int,
        kernel_size: Size,
        stride: Size = 1,
        padding: Size = 0,
        output_padding: Size = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: Size = 1,
        padding_mode: str = "zeros",
        **more: object,
    ) -> None:
        self.construct(locals())


def _form(name: str, ours: type[Layer]) -> type[OldLayer]:
    base = _ConvTranspose if "Transpose" in name else _Conv
    return type(name, (base, ours), {"__doc__": ours.__doc__, "__module__": __name__})


def _channel_form(name: str) -> type[OldLayer]:
    return _form(f"DistributedChannel{name}", getattr(conv, f"DistributedChannel{name}"))


DistributedChannelAllGatherConv1d = _channel_form("AllGatherConv1d")
DistributedChannelAllGatherConv2d = _channel_form("AllGatherConv2d")
DistributedChannelAllGatherConv3d = _channel_form("AllGatherConv3d")
DistributedChannelAllGatherConvTranspose1d = _channel_form("AllGatherConvTranspose1d")
DistributedChannelAllGatherConvTranspose2d = _channel_form("AllGatherConvTranspose2d")
DistributedChannelAllGatherConvTranspose3d = _channel_form("AllGatherConvTranspose3d")
DistributedChannelReduceScatterConv1d = _channel_form("ReduceScatterConv1d")
DistributedChannelReduceScatterConv2d = _channel_form("ReduceScatterConv2d")
DistributedChannelReduceScatterConv3d = _channel_form("ReduceScatterConv3d")
DistributedChannelReduceScatterConvTranspose1d = _channel_form("ReduceScatterConvTranspose1d")
DistributedChannelReduceScatterConvTranspose2d = _channel_form("ReduceScatterConvTranspose2d")
DistributedChannelReduceScatterConvTranspose3d = _channel_form("ReduceScatterConvTranspose3d")

DistributedFeatureConvTranspose1d = _form("DistributedFeatureConvTranspose1d", conv.DistributedConvTranspose1d)
DistributedFeatureConvTranspose2d = _form("DistributedFeatureConvTranspose2d", conv.DistributedConvTranspose2d)
DistributedFeatureConvTranspose3d = _form("DistributedFeatureConvTranspose3d", conv.DistributedConvTranspose3d)
