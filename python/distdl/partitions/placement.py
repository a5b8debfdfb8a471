"""Which worker gets which block of a grid, so that little travels between hosts.

By geometry alone, without MPI: hosts are a list, with the host of each worker.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from distdl.partitions.boxes import boxes_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    IntArray: TypeAlias = NDArray[np.int64]

GridShape: TypeAlias = tuple[int, ...]

_MOST_BLOCKS_TO_CUT = 4096  # for which trying all cuts takes tenths of a second
_MOST_DIMS_TO_PERMUTE = 4
_UNEVEN_BOXES = 3
_KEY_BITS = 62


def bytes_between(shape: Sequence[int], hosts: Sequence[Hashable], weights: Sequence[float]) -> float:
    """The bytes that travel between hosts if each block sends a halo to each neighbor.

    Args:
        shape: the number of blocks along each dimension.
        hosts: the host of each block, row-major.
        weights: the bytes that a block sends to a neighbor along each dimension.
    """
    return _bytes_apart(_numbered(hosts).reshape(shape), weights)


def order_on_hosts(shape: Sequence[int], hosts: Sequence[Hashable], weights: Sequence[float]) -> list[int]:
    """The worker of each block, row-major: of some candidates the one with the fewest bytes between hosts.

    One candidate is the row-major order of the first workers, so that no result is worse. In others, hosts follow each
    other along curves through the grid. If equally many workers of each host are used, each host may have a box of the
    grid: of all regular boxes (Gropp, 2019), and up to 4096 blocks of all boxes into which the grid can be cut in two
    again and again, those with the fewest bytes are candidates.

    Args:
        shape: the number of blocks along each dimension, at most as many as there are workers.
        hosts: the host of each worker.
        weights: the bytes that a block sends to a neighbor along each dimension.
    """
    shape, count = tuple(shape), math.prod(shape)
    numbers = _numbered(hosts)
    best = np.arange(count)
    least = _bytes_apart(numbers[:count].reshape(shape), weights)
    for workers, blocks in _candidates(shape, numbers, weights):
        order = np.empty(count, np.int64)
        order[blocks] = workers
        cost = _bytes_apart(numbers[order].reshape(shape), weights)
        if cost < least:
            best, least = order, cost
    return [int(worker) for worker in best]


def _numbered(hosts: Sequence[Hashable]) -> IntArray:
    """The hosts as numbers, in the order in which they first occur."""
    numbers: dict[Hashable, int] = {}
    return np.array([numbers.setdefault(host, len(numbers)) for host in hosts], np.int64)


def _bytes_apart(hosts: IntArray, weights: Sequence[float]) -> float:
    faces = (np.count_nonzero(np.diff(hosts, axis=d)) for d in range(hosts.ndim))
    return float(2 * sum(weight * count for weight, count in zip(weights, faces, strict=True)))  # both ways


def _candidates(shape: GridShape, hosts: IntArray, weights: Sequence[float]) -> Iterator[tuple[IntArray, IntArray]]:
    """Workers, host by host, and as many blocks, each an order in which the hosts get the blocks."""
    count = math.prod(shape)
    for groups in _selections(hosts, count):
        if len(groups) < 2:
            yield np.concatenate([*groups, np.empty(0, np.int64)]), np.arange(count)
            continue
        sizes = {len(group) for group in groups}
        largest = max(sizes)
        by_size = sorted(groups, key=lambda group: -len(group))
        orders = [np.concatenate(groups)] + ([np.concatenate(by_size)] if len(sizes) > 1 else [])
        even = _even_curves(shape, largest, weights) if len(sizes) == 1 else iter(())
        curves = itertools.chain(even, _lines(shape), _uneven_boxes(shape, largest, weights), _hilbert_curve(shape))
        yield from ((order, curve) for curve in curves for order in orders)


def _selections(hosts: IntArray, count: int) -> Iterator[list[IntArray]]:
    """The workers to use, host by host: whole hosts, those with the most workers; and the first workers."""
    groups = _by_host(hosts)
    if count < len(hosts):
        yield _by_host(hosts[:count])
        whole, missing = [], count
        for group in sorted(groups, key=lambda group: -len(group)):
            if missing:
                whole.append(group[:missing])
                missing -= len(whole[-1])
        groups = sorted(whole, key=lambda group: int(group[0]))
    yield groups


def _by_host(hosts: IntArray) -> list[IntArray]:
    if not len(hosts):
        return []
    order = np.argsort(hosts, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(hosts[order])) + 1)


def _even_curves(shape: GridShape, size: int, weights: Sequence[float]) -> Iterator[IntArray]:
    """Orders of the blocks in which each host's follow each other, with equally many blocks on each host."""

    def surface(box: GridShape) -> float:
        count = math.prod(shape)
        return sum(w * (n // b - 1) * (count // n) for w, n, b in zip(weights, shape, box, strict=True))

    boxes = (box for box in boxes_of(size, shape) if all(n % b == 0 for n, b in zip(shape, box, strict=True)))
    yield _along_boxes(shape, min(boxes, key=surface))
    if math.prod(shape) <= _MOST_BLOCKS_TO_CUT:
        yield _along_cuts(shape, size, weights)


def _along_boxes(shape: GridShape, box: GridShape) -> IntArray:
    """Box by box; those at the end may be smaller."""
    places, sides = _places(shape), np.array(box)[:, None]
    return np.lexsort((*(places % sides)[::-1], *(places // sides)[::-1]))


def _along_cuts(shape: GridShape, size: int, weights: Sequence[float]) -> IntArray:
    """Box by box, where the grid is cut in two parts of whole hosts, and so on, with the least sum of cuts."""
    best: dict[
        GridShape, tuple[float, tuple[int, int]]
    ] = {}  # of each extent of a part: its cuts, and where the first is
    for extents in sorted(itertools.product(*(range(1, n + 1) for n in shape)), key=math.prod):
        volume = math.prod(extents)
        if volume % size == 0:
            cuts = [(d, at) for d, n in enumerate(extents) for at in _cuts_along(n, volume // n, size)]
            ways = (
                (best[a][0] + best[b][0] + weights[d] * volume / extents[d], (d, at))
                for d, at in cuts
                for a, b in [_halves(extents, d, at)]
            )
            best[extents] = min(ways, key=lambda way: way[0]) if cuts else (0.0, (0, 0))

    def visit(numbers: IntArray) -> list[IntArray]:
        d, at = best[numbers.shape][1]
        return [part for side in np.split(numbers, [at], d) for part in visit(side)] if at else [numbers.ravel()]

    return np.concatenate(visit(np.arange(math.prod(shape)).reshape(shape)))


def _cuts_along(extent: int, row: int, size: int) -> range:
    """Where rows of blocks can be cut in two parts of whole hosts, up to the middle."""
    step = size // math.gcd(size, row)
    return range(step, extent // 2 + 1, step)


def _halves(extents: GridShape, d: int, at: int) -> tuple[GridShape, GridShape]:
    return (*extents[:d], at, *extents[d + 1 :]), (*extents[:d], extents[d] - at, *extents[d + 1 :])


def _lines(shape: GridShape) -> Iterator[IntArray]:
    """Row by row, with the dimensions in any order; in one direction, and there and back."""
    dims = [d for d, n in enumerate(shape) if n > 1]
    if len(dims) > _MOST_DIMS_TO_PERMUTE:
        orders = [(*dims[i:], *dims[:i]) for i in range(len(dims))]
    else:
        orders = list(itertools.permutations(dims))
    for order in orders:
        yield _rows(shape, order, False)
        yield _rows(shape, order, True)


def _rows(shape: GridShape, dims: Sequence[int], there_and_back: bool) -> IntArray:
    step, number = np.arange(math.prod(shape)), np.zeros(math.prod(shape), np.int64)
    behind = math.prod(shape)
    for d in dims:
        row, at = divmod(step // (behind // shape[d]), shape[d])
        behind //= shape[d]
        place = np.where(row % 2 == 1, shape[d] - 1 - at, at) if there_and_back else at
        number += place * math.prod(shape[d + 1 :])
    return number


def _uneven_boxes(shape: GridShape, size: int, weights: Sequence[float]) -> Iterator[IntArray]:
    """Along the boxes of the largest host that have the smallest surfaces."""
    surface = {box: sum(w / b for w, b in zip(weights, box, strict=True)) for box in boxes_of(size, shape)}
    yield from (_along_boxes(shape, box) for box in sorted(surface, key=lambda box: surface[box])[:_UNEVEN_BOXES])


def _hilbert_curve(shape: GridShape) -> Iterator[IntArray]:
    """Along Hilbert's curve through the next larger cube (J. Skilling, Programming the Hilbert curve, 2004)."""
    places = _places(shape)
    bits, dims = (max(shape, default=1) - 1).bit_length(), len(shape)
    if bits == 0 or bits * dims > _KEY_BITS:
        return
    for bit in reversed(range(1, bits)):
        low = (1 << bit) - 1
        for d in range(dims):
            is_set = places[d] >> bit & 1 == 1
            swapped = (places[0] ^ places[d]) & low
            places[d] ^= np.where(is_set, 0, swapped)
            places[0] ^= np.where(is_set, low, swapped if d else 0)
    for d in range(1, dims):
        places[d] ^= places[d - 1]
    flips = np.zeros_like(places[0])
    for bit in reversed(range(1, bits)):
        flips ^= np.where(places[-1] >> bit & 1 == 1, (1 << bit) - 1, 0)
    places ^= flips
    key = np.zeros_like(flips)
    for bit in reversed(range(bits)):
        for along in places:
            key = key << 1 | (along >> bit & 1)
    yield np.argsort(key)


def _places(shape: GridShape) -> IntArray:
    """The place of each block along each dimension."""
    return np.indices(shape).reshape(len(shape), -1)
