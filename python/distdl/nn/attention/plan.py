"""Where the queries, keys and values of attention over split heads and a split sequence meet."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from distdl import operators
from distdl.collective.grid import Grid
from distdl.nn.attention.geometry import Geometry, Sizes, by_place, intervals_of, moved
from distdl.nn.attention.kernel import Masks, Rule, attend, composed
from distdl.nn.attention.ring import Ring
from distdl.operators import Operator
from distdl.parameters.layout import Interval

_FEW = 1 << 18  # elements of all workers that travel as one message, which takes memory once more

Kept = Callable[[Sequence[int], Sequence[Interval]], torch.Tensor]
"""What the weights of attention are multiplied by: from the shape of all weights, and the block of them."""


class Plan:
    """Attention of queries and keys on a grid of workers ``[*batch, heads, sequence, 1]``, for blocks of these sizes.

    The ways of computing it, ``method``:

    - "heads": each worker receives all tokens of some of its line's heads, and the results return to their tokens;
    - "ring": each worker keeps its queries, and receives the keys and values of one worker after the other;
    - "gather": each worker receives all keys and values of its heads.

    Args:
        layer: the layer's name, for messages.
        grid: of the workers.
        query, key: the sizes of the blocks along each dimension, that of the features included.
        features: of the values.
        masks: the shapes of the masks of each worker, by mask; the last dimension has all keys, or is 1.
        causal: whether query i looks at the keys up to i.
        method: "heads" or "ring"; None for the one that fits.

    Constructing and calling are collective over the grid.
    """

    def __init__(
        self,
        layer: str,
        grid: Grid,
        query: Sizes,
        key: Sizes,
        features: int,
        masks: Sequence[Sequence[Sequence[int]]] = (),
        causal: bool = False,
        method: str | None = None,
    ) -> None:
        self.geometry = Geometry(layer, grid, query, key, causal)
        self._masks = [[by_place(grid, one, d) for d in range(grid.dim)] for one in masks]
        self._features = (query[-1][0], features)
        split = grid.shape[-2] > 1
        self.method = (method or self._fitting(query)) if split else "gather"
        self._keys = self.geometry.keys_for_all(sum(self._features))
        if self.method == "heads":
            self._prepare_heads()
        elif self.method == "ring":
            self._ring = Ring(self.geometry, self._keys, features)

    def _fitting(self, query: Sizes) -> str:
        """A ring where some workers would get no head, or where a worker would need all rows of a mask."""
        rows = any(sizes[-2] == query[-2] and sum(query[-2]) > len(query[-2]) for sizes in self._masks)
        return "ring" if rows or min(query[-3]) < len(query[-2]) else "heads"

    def _prepare_heads(self) -> None:
        g = self.geometry
        wanted, keys, self._by_heads = g.for_heads()
        e, f = self._features
        elements = math.prod(sum(sizes) for sizes in g.query[:-1]) * (e + e + f)
        self._together = wanted == keys and elements < _FEW
        arriving = [(wanted, e + e + f)] if self._together else [(wanted, e), (keys, e), (keys, f)]
        self._to_heads = [g.exchange(g.heads_grid, [*boxes, [(0, n)]]) for boxes, n in arriving]
        back = [*(intervals_of(sizes) for sizes in g.query[:-1]), [(0, self._features[1])]]
        self._back = operators.interval_exchange(g.layer, g.heads_grid, g.grid, back)
        self._masks_to_heads = [self._mask_to_heads(sizes) for sizes in self._masks]

    def _mask_to_heads(self, sizes: Sizes) -> Operator | None:
        """The exchange of a mask; None for one that is the same for all heads and queries."""
        g = self.geometry
        has_rows = sizes[-2] == g.query[-2]
        has_heads = sizes[-3] == g.query[-3] and max(sizes[-3]) > 1
        if not has_rows and not has_heads:
            return None
        wanted = [intervals_of(along) for along in sizes[:-3]]
        if has_heads:
            wanted.append(self._by_heads)
        else:
            wanted.append([(h, h + 1) for h in range(len(sizes[-3])) for _ in g.query[-2]])
        wanted.append([(0, sum(sizes[-2]) if has_rows else 1)])
        return g.exchange(g.heads_grid, [*wanted, [(0, sizes[-1][0])]])

    def __call__(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        masks: Masks = (),
        scale: float | None = None,
        kept: Kept | None = None,
        further: tuple[torch.Tensor, torch.Tensor] | None = None,
        differentiated: bool = False,
    ) -> torch.Tensor:
        """The results of this worker's queries.

        Args:
            q, k, v: this worker's blocks.
            masks: this worker's blocks of the masks, with as many dimensions as q. The last dimension has all keys, or
                is 1.
            scale: of the scores; 1 / sqrt(E) by default.
            kept: of dropout.
            further: a key and a value for each head that all queries look at as well, behind all other keys. The masks
                have a column for each of them.
            differentiated: whether tensors of any worker require gradients.
        """
        scale = _scale(q, scale)
        if self.method == "heads":
            return self._in_heads(q, k, v, masks, scale, kept, further)
        if self.method == "ring" and kept is None and further is None:
            return self._ring(q, k, v, masks, scale, differentiated)
        return self._gathered(q, k, v, masks, scale, kept, further)

    def _gathered(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        masks: Masks,
        scale: float,
        kept: Kept | None,
        further: tuple[torch.Tensor, torch.Tensor] | None,
    ) -> torch.Tensor:
        k, v, reach = self._all_keys(k, v, further)
        return attend(q, k, v, masks, Rule(scale, reach), self._kept(kept, k.shape[-2]))

    def _kept(self, kept: Kept | None, keys: int) -> torch.Tensor | None:
        if kept is None:
            return None
        g = self.geometry
        whole = [*(sum(sizes) for sizes in g.query[:-1]), keys]
        mine = [intervals_of(sizes)[at] for sizes, at in zip(g.query[:-1], g.grid.place, strict=False)]
        return kept(whole, [*mine, (0, keys)])

    def _all_keys(
        self, k: torch.Tensor, v: torch.Tensor, further: tuple[torch.Tensor, torch.Tensor] | None
    ) -> tuple[torch.Tensor, torch.Tensor, int | None]:
        """All keys and values for the heads of this worker's queries, and the reach of its queries."""
        g = self.geometry
        k, v = moved(self._keys, k, v)
        k, v = g.for_queries(k, g.grid.place[-3]), g.for_queries(v, g.grid.place[-3])
        if further is not None:
            k, v = _joined(k, further[0]), _joined(v, further[1])
        return k, v, g.reach(0) if g.causal else None

    def weights(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        masks: Masks = (),
        scale: float | None = None,
        kept: Kept | None = None,
        further: tuple[torch.Tensor, torch.Tensor] | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The results and the weights of this worker's queries, which are nan for a query that looks at no key."""
        k, v, reach = self._all_keys(k, v, further)
        rule = Rule(_scale(q, scale), reach)
        return composed(q, k, v, masks, rule, self._kept(kept, k.shape[-2]), zero_rows=False)

    def _in_heads(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        masks: Masks,
        scale: float,
        kept: Kept | None,
        further: tuple[torch.Tensor, torch.Tensor] | None,
    ) -> torch.Tensor:
        g = self.geometry
        e, f = self._features
        if self._together:
            q, k, v = self._to_heads[0](torch.cat([q, k, v], -1)).split([e, e, f], -1)
        else:
            q, k, v = (move(x) for move, x in zip(self._to_heads, (q, k, v), strict=True))
        place = g.heads_grid.place[-3]
        k, v = g.for_queries(k, place, by_heads=True), g.for_queries(v, place, by_heads=True)
        start, stop = self._by_heads[place]
        if further is not None:
            first = intervals_of(g.query[-3])[g.grid.place[-3]][0]
            k, v = (_joined(x, one[start - first : stop - first]) for x, one in zip((k, v), further, strict=True))
        masks = [m if move is None else move(m) for m, move in zip(masks, self._masks_to_heads, strict=True)]
        weights = None
        if kept is not None:
            batch = [intervals_of(sizes)[at] for sizes, at in zip(g.query[:-3], g.grid.place, strict=False)]
            rows, keys = sum(g.query[-2]), k.shape[-2]
            whole = [*(sum(sizes) for sizes in g.query[:-2]), rows, keys]
            weights = kept(whole, [*batch, (start, stop), (0, rows), (0, keys)])
        rule = Rule(scale, 0 if g.causal else None)
        return self._back(attend(q, k, v, masks, rule, weights))


def _scale(q: torch.Tensor, scale: float | None) -> float:
    """The factor of the scores: 1 / sqrt(E) where none is given."""
    if scale is not None:
        return scale
    return float(q.shape[-1] ** -0.5) if q.shape[-1] else 1.0


def _joined(x: torch.Tensor, further: torch.Tensor) -> torch.Tensor:
    """Keys or values, and further ones of (H, n, features) behind them."""
    return torch.cat([x, further.expand(*x.shape[:-2], *further.shape[-2:])], -2)
