"""The transforms of torch.fft over blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Literal, Protocol, overload

import torch

from distdl.fft.calls import call_layer, check_tensor, collective_call, layer_for, takes_part
from distdl.nn.fourier.kinds import Dims, TransformSizes, result_dtype, without_elements
from distdl.nn.fourier.transform import TRANSFORMS, FourierTransform
from distdl.partitions.construction import PartitionLike
from distdl.partitions.grid import Grid
from distdl.partitions.partition import Partition
from distdl.torch_compat.compilers import assume_constant_result

__all__ = [
    "fft", "fft2", "fftn", "hfft", "hfft2", "hfftn", "ifft", "ifft2", "ifftn", "ihfft", "ihfft2", "ihfftn", "irfft",
    "irfft2", "irfftn", "rfft", "rfft2", "rfftn",
]  # fmt: skip

_PENCIL = "pencil"
Out = PartitionLike | Literal["pencil"] | None

_DOCUMENTATION = """``torch.fft.{name}`` of a tensor in blocks; any dimension may be split, transformed or not.

Args:
    input: this rank's block.
    P_x: the partition of the input, with as many dimensions.
    {size}, dim, norm: as in ``torch.fft.{name}``. {size} and dim belong to the whole tensor.
    out: the partition of the result: P_x by default, or another one with as many dimensions. With ``"pencil"`` the
        result stays where the last dimension was transformed, and its partition is returned too; a transform back from
        this partition with ``out=P_x`` saves two exchanges.
    parts: the number of parts of the tensor. A part travels while the next part is transformed. The tensor is cut along
        a dimension that is neither transformed nor exchanged, such as the channels; without such a dimension, parts
        is 1.

Returns:
    This rank's block of the result, of zero volume if it has none. A dimension that is as long as in the input, and
    split among as many workers, is in the input's blocks. Others are in balanced blocks. With ``out="pencil"`` a tuple
    of this block and the partition of the result.

Raises:
    TypeError, ValueError: on all ranks, if partitions are missing or do not fit the blocks, or ranks differ.
    Errors of torch for the arguments, on all ranks.

A dimension is transformed where a worker has it whole. So nothing travels if no transformed dimension is split;
otherwise there are mostly two exchanges, before and after the transform. See :doc:`/fourier_transforms`.

Collective over the workers of P_x and ``out``; other ranks may call it.

Source: https://docs.pytorch.org/docs/stable/generated/torch.fft.{name}.html.
"""


class Transform1d(Protocol):
    @overload
    def __call__(
        self,
        input: torch.Tensor,
        P_x: PartitionLike,
        n: int | None = None,
        dim: int = -1,
        norm: str | None = None,
        *,
        out: PartitionLike | None = None,
        parts: int = 1,
    ) -> torch.Tensor: ...
    @overload
    def __call__(
        self,
        input: torch.Tensor,
        P_x: PartitionLike,
        n: int | None = None,
        dim: int = -1,
        norm: str | None = None,
        *,
        out: Literal["pencil"],
        parts: int = 1,
    ) -> tuple[torch.Tensor, Partition]: ...


class TransformNd(Protocol):
    @overload
    def __call__(
        self,
        input: torch.Tensor,
        P_x: PartitionLike,
        s: Sequence[int] | None = None,
        dim: Dims = None,
        norm: str | None = None,
        *,
        out: PartitionLike | None = None,
        parts: int = 1,
    ) -> torch.Tensor: ...
    @overload
    def __call__(
        self,
        input: torch.Tensor,
        P_x: PartitionLike,
        s: Sequence[int] | None = None,
        dim: Dims = None,
        norm: str | None = None,
        *,
        out: Literal["pencil"],
        parts: int = 1,
    ) -> tuple[torch.Tensor, Partition]: ...


def _transform(
    name: str,
    input: torch.Tensor,
    P_x: PartitionLike,
    size: TransformSizes,
    dim: Dims,
    norm: str | None,
    out: Out,
    parts: int,
) -> torch.Tensor | tuple[torch.Tensor, Partition]:
    stays = isinstance(out, str) and out == _PENCIL
    partitions = {"P_x": P_x, "P_out": None if stays else out}
    options = {"size": size, "dim": dim, "norm": norm, "parts": parts, "pencil": stays}
    if takes_part(partitions):
        result = call_layer(TRANSFORMS[name], partitions, options, input)  # type: ignore[arg-type]
    else:
        check_tensor(input)
        result = without_elements(input, (0,), result_dtype(name, input.dtype))
    return (result, _pencil_partition(TRANSFORMS[name], P_x, options)) if stays else result


def _pencil_partition(kind: type[FourierTransform], P_x: PartitionLike, options: Mapping[str, object]) -> Partition:
    """The partition of a layer's last result."""
    if not torch.compiler.is_compiling():
        return _pencil_of_layer(kind, P_x, options)
    pencil: Partition = getattr(_pencils, _pencil_name(kind, P_x, **options))
    return pencil


def _pencil_of_layer(kind: type[FourierTransform], P_x: PartitionLike, options: Mapping[str, object]) -> Partition:
    if takes_part({"P_x": P_x}):
        return layer_for(kind, {"P_x": P_x}, options).P_result
    return Partition.of_grid(Grid.unknown(), like=P_x)


_pencils = SimpleNamespace()  # a compiler guards an object that it finds here, but no result of a function


@assume_constant_result
def _pencil_name(kind: type[FourierTransform], P_x: PartitionLike, **options: object) -> str:
    name, pencil = f"pencil_{len(vars(_pencils))}", _pencil_of_layer(kind, P_x, options)
    takes_part({"P_x": pencil})  # compute cached properties now: they take a lock, which compilers do not trace
    setattr(_pencils, name, pencil)
    return name


def _transform_1d(name: str) -> Transform1d:
    def transform(
        input: torch.Tensor,
        P_x: PartitionLike,
        n: int | None = None,
        dim: int = -1,
        norm: str | None = None,
        *,
        out: Out = None,
        parts: int = 1,
    ) -> torch.Tensor | tuple[torch.Tensor, Partition]:
        return _transform(name, input, P_x, n, dim, norm, out, parts)

    transform.__name__ = transform.__qualname__ = name
    transform.__doc__ = _DOCUMENTATION.format(name=name, size="n")
    return collective_call(transform)  # type: ignore[return-value]


def _transform_nd(name: str) -> TransformNd:
    default = (-2, -1) if name.endswith("2") else None

    def transform(
        input: torch.Tensor,
        P_x: PartitionLike,
        s: Sequence[int] | None = None,
        dim: Dims = default,
        norm: str | None = None,
        *,
        out: Out = None,
        parts: int = 1,
    ) -> torch.Tensor | tuple[torch.Tensor, Partition]:
        return _transform(name, input, P_x, s, dim, norm, out, parts)

    transform.__name__ = transform.__qualname__ = name
    transform.__doc__ = _DOCUMENTATION.format(name=name, size="s")
    return collective_call(transform)  # type: ignore[return-value]


fft = _transform_1d("fft")
ifft = _transform_1d("ifft")
rfft = _transform_1d("rfft")
irfft = _transform_1d("irfft")
hfft = _transform_1d("hfft")
ihfft = _transform_1d("ihfft")
fft2 = _transform_nd("fft2")
ifft2 = _transform_nd("ifft2")
rfft2 = _transform_nd("rfft2")
irfft2 = _transform_nd("irfft2")
hfft2 = _transform_nd("hfft2")
ihfft2 = _transform_nd("ihfft2")
fftn = _transform_nd("fftn")
ifftn = _transform_nd("ifftn")
rfftn = _transform_nd("rfftn")
irfftn = _transform_nd("irfftn")
hfftn = _transform_nd("hfftn")
ihfftn = _transform_nd("ihfftn")
