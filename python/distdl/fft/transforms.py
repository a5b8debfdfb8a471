"""The transforms of torch.fft over blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Literal, Protocol, overload

import torch

from distdl.collective.construction import PartitionLike
from distdl.collective.grid import Grid
from distdl.fft.calls import call_layer, check_tensor, function, layer_for, takes_part
from distdl.nn.fourier.kinds import Dims, Sizes, result_dtype, without_elements
from distdl.nn.fourier.transform import TRANSFORMS, FourierTransform
from distdl.partition import Partition
from distdl.process.compilers import assume_constant_result

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
    out: where the result goes. None: to P_x. A partition with as many dimensions: to its workers. ``"pencil"``: it
        stays where the last dimension was transformed, and its partition is returned as well; a transform back that
        takes this partition, and ``out=P_x``, spares two exchanges.
    parts: in how many parts the tensor is transformed. One part travels while the next one is transformed. The tensor
        is cut along a dimension that is neither transformed nor exchanged, such as the channels; without such a
        dimension there is one part.

Returns:
    This rank's block of the result, zero volume on ranks that have none. A dimension that is as long as that of the
    input, and split among as many workers, is in the input's blocks. Others are in balanced blocks. With
    ``out="pencil"`` a tuple of this block and the partition of the result.

Raises:
    TypeError, ValueError: on all ranks, if the partitions are none or do not fit the blocks, or ranks differ.
    What torch raises for the arguments, on all ranks.

A dimension is transformed where one worker has it whole. So nothing travels if no transformed dimension is split;
otherwise the workers exchange elements, mostly once for the transform and once for the way back. See
:doc:`/fourier_transforms`.

Collective over the workers of P_x and ``out``; other ranks may call it. The first call with new arguments on a
partition prepares, the next ones vote once.

Source: https://docs.pytorch.org/docs/stable/generated/torch.fft.{name}.html.
"""


class InOneDimension(Protocol):
    """A transform along one dimension."""

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


class InSeveralDimensions(Protocol):
    """A transform along several dimensions."""

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


def _transformed(
    name: str,
    input: torch.Tensor,
    P_x: PartitionLike,
    size: Sizes,
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
    return (result, _pencil_of(TRANSFORMS[name], P_x, options)) if stays else result


def _pencil_of(kind: type[FourierTransform], P_x: PartitionLike, options: Mapping[str, object]) -> Partition:
    """The partition in which a layer that was called left its result."""
    if not torch.compiler.is_compiling():
        return _found_pencil(kind, P_x, options)
    pencil: Partition = getattr(_pencils, _pencil_told(kind, P_x, **options))
    return pencil


def _found_pencil(kind: type[FourierTransform], P_x: PartitionLike, options: Mapping[str, object]) -> Partition:
    if takes_part({"P_x": P_x}):
        return layer_for(kind, {"P_x": P_x}, options).P_result
    return Partition.of_grid(Grid.unknown(), like=P_x)


_pencils = SimpleNamespace()  # a compiler takes an object from here, and guards it; none that a function returned


@assume_constant_result
def _pencil_told(kind: type[FourierTransform], P_x: PartitionLike, **options: object) -> str:
    """The name of the pencil in `_pencils`."""
    name, pencil = f"pencil_{len(vars(_pencils))}", _found_pencil(kind, P_x, options)
    takes_part({"P_x": pencil})  # what is cached at its first use takes a lock, which compilers do not
    setattr(_pencils, name, pencil)
    return name


def _in_one_dimension(name: str) -> InOneDimension:
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
        return _transformed(name, input, P_x, n, dim, norm, out, parts)

    transform.__name__ = transform.__qualname__ = name
    transform.__doc__ = _DOCUMENTATION.format(name=name, size="n")
    return function(transform)  # type: ignore[return-value]


def _in_several_dimensions(name: str) -> InSeveralDimensions:
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
        return _transformed(name, input, P_x, s, dim, norm, out, parts)

    transform.__name__ = transform.__qualname__ = name
    transform.__doc__ = _DOCUMENTATION.format(name=name, size="s")
    return function(transform)  # type: ignore[return-value]


fft = _in_one_dimension("fft")
ifft = _in_one_dimension("ifft")
rfft = _in_one_dimension("rfft")
irfft = _in_one_dimension("irfft")
hfft = _in_one_dimension("hfft")
ihfft = _in_one_dimension("ihfft")
fft2 = _in_several_dimensions("fft2")
ifft2 = _in_several_dimensions("ifft2")
rfft2 = _in_several_dimensions("rfft2")
irfft2 = _in_several_dimensions("irfft2")
hfft2 = _in_several_dimensions("hfft2")
ihfft2 = _in_several_dimensions("ihfft2")
fftn = _in_several_dimensions("fftn")
ifftn = _in_several_dimensions("ifftn")
rfftn = _in_several_dimensions("rfftn")
irfftn = _in_several_dimensions("irfftn")
hfftn = _in_several_dimensions("hfftn")
ihfftn = _in_several_dimensions("ihfftn")
