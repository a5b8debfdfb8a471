"""The older names of two modes of DistributedUpsample in torch.nn."""

from __future__ import annotations

from distdl.nn.resizing.upsample import DistributedUpsample
from distdl.partitions.construction import PartitionLike

__all__ = ["DistributedUpsamplingBilinear2d", "DistributedUpsamplingNearest2d"]


class _OneMode(DistributedUpsample):
    """Interpolation of images in a mode that the class chooses."""

    recompute_scale_factor = None
    spatial_dims = (2,)

    def __init__(
        self,
        P_x: PartitionLike,
        size: int | tuple[int, ...] | None = None,
        scale_factor: float | tuple[float, ...] | None = None,
        *,
        output_blocks: str = "balanced",
    ) -> None:
        super(DistributedUpsample, self).__init__(locals())


class DistributedUpsamplingNearest2d(_OneMode):
    """Repeats pixels: ``torch.nn.UpsamplingNearest2d`` in blocks.

    :class:`DistributedUpsample` with mode 'nearest'.

    Args:
        P_x: the partition of input and output, ``[batch, channels, rows, columns]``.
        size, scale_factor: as in ``torch.nn.UpsamplingNearest2d``.
        output_blocks: 'balanced' in space, or 'aligned': cut where the input is cut, as far as the sizes allow.

    Shapes, exceptions and collective calls: as for :class:`DistributedUpsample`.

    Source: https://docs.pytorch.org/docs/stable/generated/torch.nn.UpsamplingNearest2d.html.
    """

    mode, align_corners = "nearest", None


class DistributedUpsamplingBilinear2d(_OneMode):
    """Interpolates between pixels: ``torch.nn.UpsamplingBilinear2d`` in blocks.

    :class:`DistributedUpsample` with mode 'bilinear' and ``align_corners=True``.

    Args:
        P_x: the partition of input and output, ``[batch, channels, rows, columns]``.
        size, scale_factor: as in ``torch.nn.UpsamplingBilinear2d``.
        output_blocks: 'balanced' in space, or 'aligned': cut where the input is cut, as far as the sizes allow.

    Shapes, exceptions and collective calls: as for :class:`DistributedUpsample`.

    Source: https://docs.pytorch.org/docs/stable/generated/torch.nn.UpsamplingBilinear2d.html.
    """

    mode, align_corners = "bilinear", True
