"""Where the queries, keys and values of attention over split heads and a split sequence meet."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from distdl.nn.attention.geometry import FEW, Geometry, by_place, intervals_of, moved
from distdl.nn.attention.heads import Heads, joined
from distdl.nn.attention.kernel import attend
from distdl.nn.attention.operands import Call, Kept, Masks, Operands, Rule
from distdl.nn.attention.ring import Ring
from distdl.nn.attention.scores import composed
from distdl.nn.attention.shared import Shared

LONG = 1 << 10  # tokens, for a causal ring to be balanced: fewer are not worth to move queries


class Plan:
    """Attention of queries and keys on a grid of workers ``[*batch, heads, sequence, 1]``, for blocks of these sizes.

    The ways of computing it, ``method``:

    - "heads": each worker receives all tokens of some of its line's heads, and the results return to their tokens;
    - "ring": each worker keeps its queries, and receives the keys and values of one worker after the other;
    - "gather": each worker receives all keys and values of its heads.

    Args:
        geometry: the blocks of queries and keys.
        features: of the values.
        masks: the shapes of the masks of each worker, by mask; the last dimension has all keys, or is 1.
        method: "heads" or "ring"; None for the one that fits.

    Constructing and calling are collective over the grid.
    """

    def __init__(
        self,
        geometry: Geometry,
        features: int,
        masks: Sequence[Sequence[Sequence[int]]] = (),
        method: str | None = None,
    ) -> None:
        self.geometry = g = geometry
        self._masks = [[by_place(g.grid, one, d) for d in range(g.grid.dim)] for one in masks]
        self._features = (g.query[-1][0], features)
        split = g.grid.shape[-2] > 1
        self.method = (method or self._fitting()) if split else "gather"
        self._keys = g.keys_for_all(sum(self._features))
        if self.method == "heads":
            self._heads = Heads(g, self._features)
            self._masks_to_heads = [self._heads.for_mask(sizes) for sizes in self._masks]
        if split:
            self._shared = self._sharing()

    def _fitting(self) -> str:
        """A ring where some workers would get no head, or where a worker would need all rows of a mask."""
        rows = self.geometry.query[-2]
        has_rows = any(sizes[-2] == rows and sum(rows) > len(rows) for sizes in self._masks)
        return "ring" if has_rows or min(self.geometry.query[-3]) < len(rows) else "heads"

    def _sharing(self) -> Shared:
        groups = self._groups()
        part = self.geometry.group_of_heads(groups) if groups > 1 else self.geometry
        if self.method == "ring":
            has_rows = any(max(sizes[-2]) > 1 for sizes in self._masks)
            balanced = part.causal and not has_rows and sum(part.query[-2]) >= LONG
            return Shared(self.geometry, Ring(part, self._features, balanced), groups, self._gathered)
        method = self._heads if groups == 1 else Heads(part, self._features)
        return Shared(self.geometry, method, groups, self._heads.recorded)

    def _groups(self) -> int:
        """In how many groups of heads to compute: of `FEW` elements of a worker, and a head for each worker at least.

        Blocks of less than eight times as many elements are not worth the further messages.
        """
        g = self.geometry
        places = g.grid.shape[-2]
        has_heads = any(sizes[-3] == g.query[-3] and max(sizes[-3]) > 1 for sizes in self._masks)
        elements = math.prod(sum(sizes) for sizes in g.query) // g.grid.size
        if has_heads or not g.has_its_heads() or elements < 8 * FEW:
            return 1
        share = math.gcd(*g.key[-3])  # of heads that each worker can divide
        least = places if self.method == "heads" else 1
        fitting = [n for n in range(1, share + 1) if share % n == 0 and min(g.query[-3]) // n >= least]
        return max((n for n in fitting if n * FEW <= elements), default=1)

    def __call__(self, call: Call) -> torch.Tensor:
        """The results of this worker's queries."""
        shares = _is_plain(call)
        if self.method == "heads":
            masks = [m if move is None else move(m) for m, move in zip(call.masks, self._masks_to_heads, strict=True)]
            return self._shared(call, masks) if shares else self._heads.recorded(call, masks)
        if self.method == "ring" and shares:
            return self._shared(call, call.masks)
        return self._gathered(call, call.masks)

    def _gathered(self, call: Call, masks: Masks) -> torch.Tensor:
        """The results of operations that autograd records."""
        x = self._all_keys(call, masks)
        return attend(x, self._kept(call.kept, x.k.shape[-2]), call.has_tangent)

    def weights(self, call: Call) -> tuple[torch.Tensor, torch.Tensor]:
        """The results and the weights of this worker's queries, which are nan for a query that looks at no key."""
        x = self._all_keys(call, call.masks)
        return composed(x, self._kept(call.kept, x.k.shape[-2]), zero_rows=False)

    def _all_keys(self, call: Call, masks: Masks) -> Operands:
        """This worker's queries, and all keys and values for their heads."""
        g = self.geometry
        k, v = (g.for_queries(x, g.grid.place[-3]) for x in moved(self._keys, call.k, call.v))
        if call.further is not None:
            k, v = joined(k, call.further[0]), joined(v, call.further[1])
        return Operands(call.q, k, v, masks, Rule(call.factor, g.reach(0) if g.causal else None))

    def _kept(self, kept: Kept | None, keys: int) -> torch.Tensor | None:
        if kept is None:
            return None
        g = self.geometry
        whole = [*(sum(sizes) for sizes in g.query[:-1]), keys]
        mine = [intervals_of(sizes)[at] for sizes, at in zip(g.query[:-1], g.grid.place, strict=False)]
        return kept(whole, [*mine, (0, keys)])


def _is_plain(call: Call) -> bool:
    """Whether a function with derivatives of its own, backward ones, can compute a call.

    Compilers do not see its exchanges.
    """
    if torch.compiler.is_compiling() or call.has_tangent:
        return False
    return call.kept is None and call.further is None and call.q.device.type == "cpu"
