"""Multi-head attention with its projections, as a part of layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F

from distdl import operators
from distdl.nn.attention.kernels.operands import AttentionCall, DropoutMask
from distdl.nn.attention.masks import masks_of_workers
from distdl.nn.attention.methods.choice import AttentionPlan
from distdl.nn.attention.methods.geometry import Geometry
from distdl.nn.base.layer import Layer
from distdl.nn.base.precision import FLOATING
from distdl.nn.base.voted_layer import Described
from distdl.operators import Operator
from distdl.parameters.initial import like_linear
from distdl.partitions.boxes import block_intervals
from distdl.partitions.grid import Grid

Parameters = Mapping[str, torch.Tensor]


def attention_grid(grid: Grid, batch_first: bool) -> Grid:
    """The workers as ``[batch, heads, sequence, 1]``, from a partition of (N, L, E), (L, N, E) or (L, E)."""
    if not grid.known:
        return grid
    if grid.dim == 2:
        return grid.reshaped((1, 1, grid.shape[0], 1))
    if batch_first:
        return grid.reshaped((grid.shape[0], 1, grid.shape[1], 1))
    sequence, batch = grid.shape[:2]
    ranks = [grid.ranks[grid.worker((s, b, 0))] for b in range(batch) for s in range(sequence)]
    return grid.related(ranks, (batch, 1, sequence, 1))


def draw_then_zero(initialize: object) -> object:
    """Advance the generator as torch.nn does, then fill with 0."""

    def fill(tensor: torch.Tensor) -> None:
        initialize(tensor)  # type: ignore[operator]
        torch.nn.init.zeros_(tensor)

    return fill


class ProjectedAttention:
    """The parameters and the computation of ``torch.nn.MultiheadAttention`` within a layer.

    Args:
        prefix: of their names: empty, or ending with a dot.
        embed_dim, num_heads, bias, add_bias_kv, add_zero_attn, kdim, vdim, batch_first: as in torch.nn.
    """

    def __init__(
        self,
        layer: Layer,
        prefix: str,
        embed_dim: int,
        num_heads: int,
        *,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        method: str | None = None,
    ) -> None:
        self.name, self.prefix = type(layer).__name__, prefix
        self.embed_dim, self.num_heads, self.batch_first, self.method = embed_dim, num_heads, batch_first, method
        self.features = (embed_dim, embed_dim if kdim is None else kdim, embed_dim if vdim is None else vdim)
        self.packed = self.features == (embed_dim,) * 3
        self.bias, self.add_bias_kv, self.add_zero_attn = bias, add_bias_kv, add_zero_attn
        self.extra_keys = int(add_bias_kv) + int(add_zero_attn)
        self.dims = layer.grid.dim
        self.grid = attention_grid(layer.grid, batch_first)
        self._gather_padding: Operator | None = None
        self._declare(layer)

    def _declare(self, layer: Layer) -> None:
        """Declare the parameters in the order in which torch.nn draws them."""

        def declare(name: str, shape: tuple[int, ...], initialize: object) -> None:
            layer.declare_parameter(self.prefix + name, layer.grid, shape, (None,) * len(shape), initialize=initialize)

        e = self.embed_dim
        of_weight, of_bias = like_linear((e, e))
        xavier = torch.nn.init.xavier_uniform_
        declare("out_proj.weight", (e, e), of_weight)
        if self.bias:
            declare("out_proj.bias", (e,), draw_then_zero(of_bias))
        if self.packed:
            declare("in_proj_weight", (3 * e, e), xavier)
        else:
            for name, features in zip("qkv", self.features, strict=True):
                declare(f"{name}_proj_weight", (e, features), xavier)
        if self.bias:
            declare("in_proj_bias", (3 * e,), torch.nn.init.zeros_)
        if self.add_bias_kv:
            declare("bias_k", (1, 1, e), torch.nn.init.xavier_normal_)
            declare("bias_v", (1, 1, e), torch.nn.init.xavier_normal_)

    # Set-up

    def set_up(
        self,
        query: Sequence[Sequence[int]],
        key: Sequence[Sequence[int]],
        key_padding: Sequence[Described],
        mask: Sequence[Described],
        is_causal: bool,
        need_weights: bool = False,
        names: tuple[str, str] = ("key_padding_mask", "attn_mask"),
    ) -> None:
        """Prepare for blocks of these sizes, by dimension of the layer's tensors, and for masks of all workers.

        As in torch.nn, is_causal replaces the mask if there is no key padding mask and weights are not wanted.
        """
        self._leaves_out_mask = bool(is_causal and mask and not key_padding and not need_weights)
        causal = is_causal and (self._leaves_out_mask or not mask)
        batch, rows = self._extents(query)
        columns = self._extents(key)[1]
        shapes = self._padding_shapes(names[0], key_padding, batch, columns)
        of_mask = self._mask_shapes(names[1], mask, batch, rows, sum(columns))
        shapes += [] if self._leaves_out_mask else of_mask
        heads, size = [self.num_heads], [self.embed_dim // self.num_heads]
        geometry = Geometry(self.name, self.grid, [batch, heads, rows, size], [batch, heads, columns, size], causal)
        self.plan = AttentionPlan(geometry, size[0], shapes, self.method)

    def _padding_shapes(
        self, name: str, described: Sequence[Described], batch: Sequence[int], columns: Sequence[int]
    ) -> list[list[list[int]]]:
        """The shapes of all workers' padding masks, by worker. Sets up the exchange that gathers padding."""
        self._gather_padding = None
        paddings = masks_of_workers(self.name, name, described, self.grid)
        if paddings is None:
            return []
        for worker, (shape, dtype) in enumerate(paddings):
            b, _, s, _ = self._place(worker)
            expected = [columns[s]] if self.dims == 2 else [batch[b], columns[s]]
            self._check_mask(name, worker, shape, dtype, [expected])
        keys = sum(columns)
        if len(columns) > 1:
            line = self.grid.reshaped((len(batch), len(columns)))
            wanted = [block_intervals(batch), [(0, keys)] * len(columns)]
            self._gather_padding = operators.interval_exchange(self.name, line, line, wanted)
        return [[[batch[i], 1, 1, keys + self.extra_keys] for i in self._batches()]]

    def _mask_shapes(
        self, name: str, described: Sequence[Described], batch: Sequence[int], rows: Sequence[int], keys: int
    ) -> list[list[list[int]]]:
        """The shapes of all workers' masks, by worker of the attention grid."""
        masks = masks_of_workers(self.name, name, described, self.grid)
        if masks is None:
            return []
        shapes: list[list[int]] = [[]] * self.grid.size
        for worker, (shape, dtype) in enumerate(masks):
            b, _, s, _ = self._place(worker)
            extents = [rows[s], keys]
            self._check_mask(name, worker, shape, dtype, [extents, [batch[b] * self.num_heads, *extents]])
            leading = [1, 1] if len(shape) == 2 else [batch[b], self.num_heads]
            shapes[self._attention_worker(worker)] = [*leading, rows[s], keys + self.extra_keys]
        return [shapes]

    def _extents(self, sizes: Sequence[Sequence[int]]) -> tuple[Sequence[int], Sequence[int]]:
        if self.dims == 2:
            return [1], sizes[0]
        return (sizes[0], sizes[1]) if self.batch_first else (sizes[1], sizes[0])

    def _attention_worker(self, worker: int) -> int:
        if self.dims == 2 or self.batch_first:
            return worker
        batch, _, sequence, _ = self.grid.shape
        s, b = divmod(worker, batch)
        return b * sequence + s

    def _place(self, worker: int) -> tuple[int, ...]:
        return self.grid.index(self._attention_worker(worker))

    def _batches(self) -> list[int]:
        return [self.grid.index(worker)[0] for worker in range(self.grid.size)]

    def _check_mask(
        self, name: str, worker: int, shape: Sequence[int], dtype: torch.dtype, expected: Sequence[Sequence[int]]
    ) -> None:
        if list(shape) not in [list(extents) for extents in expected] or dtype not in (torch.bool, *FLOATING):
            raise ValueError(
                f"{self.name}: worker {worker} of P_x has {name} of shape {list(shape)} ({dtype}); it must be boolean "
                f"or of floating point, of shape {' or '.join(str(list(extents)) for extents in expected)}"
            )

    # The call

    def __call__(
        self,
        parameters: Parameters,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        key_padding: torch.Tensor | None,
        mask: torch.Tensor | None,
        dropout: DropoutMask | None = None,
        need_weights: bool = False,
        differentiated: bool = False,
        has_tangent: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The results of this worker's queries, and on request the weights (N, H, L, S)."""
        q, k, v = self._projections(parameters, query, key, value)
        further = self._extra_keys_and_values(parameters, q) if self.extra_keys else None
        masks = self._masks(key_padding, None if self._leaves_out_mask else mask)
        call = AttentionCall(q, k, v, masks, None, dropout, further, differentiated, has_tangent)
        y, weights = self.plan.weights(call) if need_weights else (self.plan(call), None)
        y = y.transpose(1, 2).reshape(y.shape[0], y.shape[2], self.embed_dim)
        y = F.linear(y, parameters[f"{self.prefix}out_proj.weight"], parameters.get(f"{self.prefix}out_proj.bias"))
        if self.dims == 2:
            return y.squeeze(0), weights
        return y if self.batch_first else y.transpose(0, 1), weights

    def _projections(self, parameters: Parameters, *tensors: torch.Tensor) -> Sequence[torch.Tensor]:
        bias = parameters.get(f"{self.prefix}in_proj_bias")
        if self.packed:
            weight = parameters[f"{self.prefix}in_proj_weight"]
            if all(tensor is tensors[0] for tensor in tensors):
                return [self._heads(tensor) for tensor in F.linear(tensors[0], weight, bias).chunk(3, -1)]
            weights = weight.chunk(3)
        else:
            weights = tuple(parameters[f"{self.prefix}{name}_proj_weight"] for name in "qkv")
        biases = (None,) * 3 if bias is None else bias.chunk(3)
        return [self._heads(F.linear(x, w, b)) for x, w, b in zip(tensors, weights, biases, strict=True)]

    def _heads(self, x: torch.Tensor) -> torch.Tensor:
        if self.dims == 2:
            x = x.unsqueeze(0)
        elif not self.batch_first:
            x = x.transpose(0, 1)
        return x.unflatten(-1, (self.num_heads, self.embed_dim // self.num_heads)).transpose(1, 2)

    def _extra_keys_and_values(self, parameters: Parameters, q: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Extra keys and values of all queries, (H, n, E / H)."""
        extra = []
        for name in ("bias_k", "bias_v"):
            rows = []
            if self.add_bias_kv:
                rows.append(parameters[self.prefix + name].reshape(1, self.num_heads, -1).to(q.dtype))
            if self.add_zero_attn:
                rows.append(q.new_zeros(1, self.num_heads, q.shape[-1]))
            extra.append(torch.cat(rows).transpose(0, 1))
        return extra[0], extra[1]

    def _masks(self, key_padding: torch.Tensor | None, mask: torch.Tensor | None) -> list[torch.Tensor]:
        masks = []
        if key_padding is not None:
            padding = key_padding.unsqueeze(0) if self.dims == 2 else key_padding
            if self._gather_padding is not None:
                padding = self._gather_padding(padding)
            masks.append(padding[:, None, None, :])
        if mask is not None:
            masks.append(mask[None, None] if mask.dim() == 2 else mask.unflatten(0, (-1, self.num_heads)))
        masks = [~mask if mask.dtype == torch.bool else mask for mask in masks]
        if not self.extra_keys:
            return masks
        return [F.pad(mask, (0, self.extra_keys), value=float(mask.dtype == torch.bool)) for mask in masks]
