"""The convolutions that only the descendant has, with its further options: transposed, all-gather, reduce-scatter."""

from __future__ import annotations

from distdl.classic.arguments import old_arguments
from distdl.classic.keys import OldLayer
from distdl.nn import conv
from distdl.nn.base.layer import Layer

_ORDER = "P_x in_channels out_channels kernel_size stride padding dilation groups bias padding_mode"
_ORDER_OF_TRANSPOSED = (
    "P_x in_channels out_channels kernel_size stride padding output_padding groups bias dilation padding_mode"
)


def _form(name: str, ours: type[Layer]) -> type[OldLayer]:
    order = _ORDER_OF_TRANSPOSED if "Transpose" in name else _ORDER
    return old_arguments(order)(type(name, (OldLayer, ours), {"__doc__": ours.__doc__, "__module__": __name__}))


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
