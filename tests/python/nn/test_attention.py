"""Attention in blocks beside torch's on the whole."""

import pytest
import torch

import distdl.nn as dnn
from support.blocks import grid, grid_shapes
from support.families import Example
from support.ranks import job
from support.sequential import assert_equals_sequential


class Attention(torch.nn.Module):
    """torch's attention of operations that it differentiates twice."""

    def __init__(self, **options):
        super().__init__()
        self.options = options

    def forward(self, query, key, value, attn_mask=None):
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            attn_mask = torch.zeros(attn_mask.shape, dtype=query.dtype).masked_fill(~attn_mask, -torch.inf)
        return torch.ops.aten._scaled_dot_product_attention_math(query, key, value, attn_mask, **self.options)[0]


def scores(shape, seed):
    """Values in [-1, 1] that differ."""
    return torch.sin(3.0 * seed + torch.arange(torch.Size(shape).numel(), dtype=torch.double)).reshape(shape)


def example(batch=(2,), heads=4, keys_heads=None, rows=5, columns=5, features=3, values_features=None, mask=None,
            method=None, **options):  # fmt: skip
    """An example on P_x of [*batch, heads, sequence, 1]."""
    keys_heads, values_features = keys_heads or heads, values_features or features
    dims = len(batch) + 3
    inputs = [
        scores((*batch, heads, rows, features), 1),
        scores((*batch, keys_heads, columns, features), 2),
        scores((*batch, keys_heads, columns, values_features), 3),
    ]
    cut = tuple(range(dims))
    cuts = [cut] * 3
    if mask is not None:
        inputs.append(mask)
        last = mask.dim() - 1
        cuts.append(tuple(None if n == 1 or d == last else d + dims - mask.dim() for d, n in enumerate(mask.shape)))
    renamed = {"is_causal": "is_causal", "scale": "scale", "enable_gqa": "enable_gqa"}
    ours = {key: value for key, value in options.items() if key in renamed}
    return Example(
        lambda: Attention(**options),
        lambda: tuple(x.clone() for x in inputs),
        dims,
        tuple(cuts),
        (cut,),
        whole=(dims - 1,),
        layer=lambda twin, P: dnn.DistributedScaledDotProductAttention(P, method=method, **ours),
    )


def boolean(*shape):
    """A mask with a row that looks at no key."""
    mask = scores(shape, 5) > -0.3
    mask.reshape(-1, shape[-1])[shape[-2] // 2] = False
    return mask


EXAMPLES = {
    "self": example(),
    "causal": example(is_causal=True),
    "fewer keys, causal": example(rows=6, columns=4, is_causal=True),
    "more keys, causal": example(rows=4, columns=7, is_causal=True),
    "cross": example(rows=5, columns=7, values_features=2, scale=0.3),
    "more features of values": example(rows=3, values_features=5),
    "grouped": example(heads=6, keys_heads=2, enable_gqa=True),
    "grouped, causal": example(heads=4, keys_heads=1, enable_gqa=True, is_causal=True),
    "boolean rows": example(mask=boolean(5, 5)),
    "boolean of all": example(mask=boolean(2, 4, 5, 6), columns=6),
    "added by heads": example(mask=scores((4, 5, 5), 6)),
    "keys alone": example(mask=boolean(2, 1, 2, 5)[..., :1, :]),
    "without batch": example(batch=(), heads=3),
    "two batches": example(batch=(2, 2), heads=2, rows=3, columns=3),
    "fewer heads": example(heads=1, rows=6, columns=4),
}


@pytest.mark.shared
@pytest.mark.parametrize("method", [None, "heads", "ring"])
@pytest.mark.parametrize("name", EXAMPLES)
def test_equals_torch(P_world, name, method):
    import dataclasses

    one = EXAMPLES[name]
    make = one.layer

    def layer(twin, P):
        made = make(twin, P)
        made.method = method
        return made

    one = dataclasses.replace(one, layer=layer)
    for shape in grid_shapes(one.dims, job.size, fixed=one.whole):
        if torch.Size(shape).numel() == job.size:
            assert_equals_sequential(one, grid(P_world, shape))
