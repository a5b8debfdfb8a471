"""Frequencies of a block of a spectrum, and shifts of a spectrum in blocks."""

from __future__ import annotations

import torch

from distdl.fft.calls import call_layer, check_tensor, collective_call, takes_part
from distdl.nn.fourier.kinds import Dims
from distdl.nn.fourier.shift import SHIFTS
from distdl.partitions.boxes import cut
from distdl.partitions.construction import PartitionLike, grid_of, is_partition

__all__ = ["fftfreq", "fftshift", "ifftshift", "rfftfreq"]


def fftfreq(
    n: int,
    P_x: PartitionLike,
    dim: int = -1,
    d: float = 1.0,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
) -> torch.Tensor:
    """This worker's balanced block of ``torch.fft.fftfreq``; no elements on ranks outside of P_x.

    Args:
        n: the length of the whole signal.
        P_x: the partition of the spectrum.
        dim: the dimension of P_x along which the frequencies are cut.
        d, dtype, device: as in ``torch.fft.fftfreq``.

    Raises:
        TypeError: if P_x is not a partition.
        IndexError: if P_x has no dimension ``dim``.
        Other errors of torch.fft.fftfreq.

    No other rank has to call it.

    Source: https://docs.pytorch.org/docs/stable/generated/torch.fft.fftfreq.html.
    """
    return _local_frequencies(torch.fft.fftfreq(n, d, dtype=dtype, device=device), P_x, dim, "fftfreq")


def rfftfreq(
    n: int,
    P_x: PartitionLike,
    dim: int = -1,
    d: float = 1.0,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
) -> torch.Tensor:
    """This worker's balanced block of ``torch.fft.rfftfreq``, which has n // 2 + 1 frequencies in all.

    See :func:`fftfreq`.

    Source: https://docs.pytorch.org/docs/stable/generated/torch.fft.rfftfreq.html.
    """
    return _local_frequencies(torch.fft.rfftfreq(n, d, dtype=dtype, device=device), P_x, dim, "rfftfreq")


def _local_frequencies(whole: torch.Tensor, P_x: PartitionLike, dim: int, name: str) -> torch.Tensor:
    if not is_partition(P_x):
        raise TypeError(
            f"{name}: P_x is a {type(P_x).__name__}; it has to be a distdl.Partition or an mpi4py intracommunicator"
        )
    grid = grid_of(P_x)
    if not grid.active:
        return whole[:0].clone()
    if not -grid.dim <= dim < grid.dim:
        raise IndexError(f"{name}: dim={dim}; P_x has shape {list(grid.shape)}")
    start, stop = cut(whole.shape[0], grid.shape[dim])[grid.place[dim]]
    return whole[start:stop].clone()


def _shifted(name: str, input: torch.Tensor, P_x: PartitionLike, dim: Dims) -> torch.Tensor:
    if not takes_part({"P_x": P_x}):
        check_tensor(input)
        return input.clone()
    return call_layer(SHIFTS[name], {"P_x": P_x}, {"dim": dim}, input)


@collective_call
def fftshift(input: torch.Tensor, P_x: PartitionLike, dim: Dims = None) -> torch.Tensor:
    """``torch.fft.fftshift`` of a tensor in blocks: frequency 0 moves to the middle.

    Args:
        input: this rank's block, of any dtype.
        P_x: the partition of the input; any dimension may be split.
        dim: as in torch.fft.

    Returns:
        This rank's block of the result, in the input's blocks; zero volume outside of P_x. All dimensions take one
        exchange, which moves only elements that change their worker.

    Raises:
        TypeError, ValueError: on all ranks, if P_x is not a partition or does not fit the blocks, or ranks differ.
        Errors of torch for ``dim``, on all ranks.

    Collective over the workers of P_x; other ranks may call it.

    Source: https://docs.pytorch.org/docs/stable/generated/torch.fft.fftshift.html.
    """
    return _shifted("fftshift", input, P_x, dim)


@collective_call
def ifftshift(input: torch.Tensor, P_x: PartitionLike, dim: Dims = None) -> torch.Tensor:
    """``torch.fft.ifftshift`` of a tensor in blocks: the inverse of :func:`fftshift`, with the same arguments.

    Source: https://docs.pytorch.org/docs/stable/generated/torch.fft.ifftshift.html.
    """
    return _shifted("ifftshift", input, P_x, dim)
