"""Upsampling as programs written for DistDL know it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from distdl.classic.buffer import MPIBufferManager
from distdl.classic.nothing import OldResults
from distdl.nn import resizing
from distdl.partitions.construction import PartitionLike, grid_of, is_partition

_OF_DIMENSIONS = {1: "linear", 2: "bilinear", 3: "trilinear"}


class DistributedUpsample(OldResults, resizing.DistributedUpsample):
    """Our layer, where 'linear' is the mode for any number of dimensions, and the default.

    Args:
        P_x: the partition of input and output.
        buffer_manager: taken, and left alone.
        size: of the result; of the whole tensor with batch and channels, or of space alone.
        scale_factor, mode: as in torch.nn.
        align_corners: as in torch.nn; False goes with every mode.
        options: the further options of our layer, by name.
    """

    def __init__(
        self,
        P_x: PartitionLike,
        buffer_manager: MPIBufferManager | None = None,
        size: int | Sequence[int] | None = None,
        scale_factor: float | tuple[float, ...] | None = None,
        mode: str = "linear",
        align_corners: bool | None = False,
        **options: object,
    ) -> None:
        dim = grid_of(P_x).dim if is_partition(P_x) else 0
        mode = _OF_DIMENSIONS.get(dim - 2, mode) if mode == "linear" else mode
        if isinstance(size, Iterable):
            size = tuple(size)
            size = size[2:] if len(size) == dim else size
        if mode in ("nearest", "nearest-exact", "area") and not align_corners:
            align_corners = None
        super().__init__(P_x, size, scale_factor, mode, align_corners, **options)  # type: ignore[arg-type]
        self.__dict__["buffer_manager"] = buffer_manager or MPIBufferManager()
