"""The all-gather and the reduce-scatter forms of convolutions, with the further options of the descendant."""

from __future__ import annotations

from distdl.classic.keys import OldLayer, parted
from distdl.collective.construction import PartitionLike
from distdl.nn import conv

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
        further, others = parted(more)
        super().__init__(  # type: ignore[call-arg]
            P_x, in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias, padding_mode, **others  # type: ignore[arg-type]
        )  # fmt: skip
        self.take_further(**further)  # type: ignore[arg-type]


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
        further, others = parted(more)
        super().__init__(  # type: ignore[call-arg]
            P_x, in_channels, out_channels, kernel_size, stride, padding, output_padding, groups, bias, dilation,  # type: ignore[arg-type]
            padding_mode, **others,
        )  # fmt: skip
        self.take_further(**further)  # type: ignore[arg-type]


def _form(name: str) -> type[OldLayer]:
    ours = getattr(conv, f"DistributedChannel{name}")
    base = _ConvTranspose if "Transpose" in name else _Conv
    return type(ours.__name__, (base, ours), {"__doc__": ours.__doc__, "__module__": __name__})


DistributedChannelAllGatherConv1d = _form("AllGatherConv1d")
DistributedChannelAllGatherConv2d = _form("AllGatherConv2d")
DistributedChannelAllGatherConv3d = _form("AllGatherConv3d")
DistributedChannelAllGatherConvTranspose1d = _form("AllGatherConvTranspose1d")
DistributedChannelAllGatherConvTranspose2d = _form("AllGatherConvTranspose2d")
DistributedChannelAllGatherConvTranspose3d = _form("AllGatherConvTranspose3d")
DistributedChannelReduceScatterConv1d = _form("ReduceScatterConv1d")
DistributedChannelReduceScatterConv2d = _form("ReduceScatterConv2d")
DistributedChannelReduceScatterConv3d = _form("ReduceScatterConv3d")
DistributedChannelReduceScatterConvTranspose1d = _form("ReduceScatterConvTranspose1d")
DistributedChannelReduceScatterConvTranspose2d = _form("ReduceScatterConvTranspose2d")
DistributedChannelReduceScatterConvTranspose3d = _form("ReduceScatterConvTranspose3d")
