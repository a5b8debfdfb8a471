"""The choice between methods of attention over split heads and a split sequence."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from distdl.nn.attention.kernels.local import attend
from distdl.nn.attention.kernels.operands import AttentionCall, DropoutMask, MaskRule, Masks, Operands
from distdl.nn.attention.kernels.scores import attention_by_scores
from distdl.nn.attention.methods.composite import SharedAttention
from distdl.nn.attention.methods.geometry import FEW, Geometry, exchanged, extents_by_place
from distdl.nn.attention.methods.heads import Heads, with_extra_keys
from distdl.nn.attention.methods.ring import Ring
from distdl.partitions.boxes import block_at

LONG = 1 << 10  # tokens from which a causal ring is balanced: fewer do not repay moving queries


class AttentionPlan:
    """Attention on a grid of workers ``[*batch, heads, sequence, 1]``, for blocks of fixed sizes.

    ``method``:

    - "heads": each worker receives all tokens of some heads, and returns the results;
    - "ring": each worker keeps its queries, and receives keys and values from worker after worker;
    - "gather": each worker receives all keys and values of its heads.

    Args:
        features: of the values.
        masks: the shapes of the masks of each worker, by mask; the last dimension has all
            keys, or is 1.
        method: "heads", "ring", or None to choose.

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
        self._masks = [[extents_by_place(g.grid, shapes, d) for d in range(g.grid.dim)] for shapes in masks]
        self._features = (g.query[-1][0], features)
        split = g.grid.shape[-2] > 1
        self.method = (method or self._best_method()) if split else "gather"
        self._keys = g.keys_for_all(sum(self._features))
        if self.method == "heads":
            self._heads = Heads(g, self._features)
            self._masks_to_heads = [self._heads.for_mask(sizes) for sizes in self._masks]
        if split:
            self._shared = self._make_shared()

    def _best_method(self) -> str:
        """Choose "ring" if some workers would get no head, or a worker would need all rows of a mask."""
        rows = self.geometry.query[-2]
        has_rows = any(sizes[-2] == rows and sum(rows) > len(rows) for sizes in self._masks)
        return "ring" if has_rows or min(self.geometry.query[-3]) < len(rows) else "heads"

    def _make_shared(self) -> SharedAttention:
        groups = self._groups()
        part = self.geometry.group_of_heads(groups) if groups > 1 else self.geometry
        if self.method == "ring":
            has_rows = any(max(sizes[-2]) > 1 for sizes in self._masks)
            balanced = part.causal and not has_rows and sum(part.query[-2]) >= LONG
            return SharedAttention(self.geometry, Ring(part, self._features, balanced), groups, self._gathered)
        method = self._heads if groups == 1 else Heads(part, self._features)
        return SharedAttention(self.geometry, method, groups, self._heads.recorded)

    def _groups(self) -> int:
        """The number of groups of heads: at least `FEW` elements and a head for each worker in each group.

        Below eight times as many elements, further messages do not pay.
        """
        g = self.geometry
        places = g.grid.shape[-2]
        has_heads = any(sizes[-3] == g.query[-3] and max(sizes[-3]) > 1 for sizes in self._masks)
        elements = math.prod(sum(sizes) for sizes in g.query) // g.grid.size
        if has_heads or not g.has_its_heads() or elements < 8 * FEW:
            return 1
        share = math.gcd(*g.key[-3])  # heads: each worker can divide its own by it
        least = places if self.method == "heads" else 1
        fitting = [n for n in range(1, share + 1) if share % n == 0 and min(g.query[-3]) // n >= least]
        return max((n for n in fitting if n * FEW <= elements), default=1)

    def __call__(self, call: AttentionCall) -> torch.Tensor:
        is_shared = _fits_shared(call)
        if self.method == "heads":
            masks = [m if move is None else move(m) for m, move in zip(call.masks, self._masks_to_heads, strict=True)]
            return self._shared(call, masks) if is_shared else self._heads.recorded(call, masks)
        if self.method == "ring" and is_shared:
            return self._shared(call, call.masks)
        return self._gathered(call, call.masks)

    def _gathered(self, call: AttentionCall, masks: Masks) -> torch.Tensor:
        x = self._all_keys(call, masks)
        return attend(x, self._dropout_block(call.dropout, x.k.shape[-2]), call.has_tangent)

    def weights(self, call: AttentionCall) -> tuple[torch.Tensor, torch.Tensor]:
        """The results and weights of this worker's queries; nan for a query without a key."""
        x = self._all_keys(call, call.masks)
        return attention_by_scores(x, self._dropout_block(call.dropout, x.k.shape[-2]), zero_rows=False)

    def _all_keys(self, call: AttentionCall, masks: Masks) -> Operands:
        g = self.geometry
        k, v = (g.repeat_heads(x, g.grid.place[-3]) for x in exchanged(self._keys, call.k, call.v))
        if call.extra_keys is not None:
            k, v = with_extra_keys(k, call.extra_keys[0]), with_extra_keys(v, call.extra_keys[1])
        return Operands(call.q, k, v, masks, MaskRule(call.factor, g.reach(0) if g.causal else None))

    def _dropout_block(self, dropout: DropoutMask | None, keys: int) -> torch.Tensor | None:
        if dropout is None:
            return None
        g = self.geometry
        whole = [*(sum(sizes) for sizes in g.query[:-1]), keys]
        block = block_at(g.query[:-1], g.grid.place)
        return dropout(whole, [*block, (0, keys)])


def _fits_shared(call: AttentionCall) -> bool:
    """Whether an autograd function with its own backward pass can compute a call.

    Compilers do not see its exchanges.
    """
    if torch.compiler.is_compiling() or call.has_tangent:
        return False
    return call.dropout is None and call.extra_keys is None and call.q.device.type == "cpu"
