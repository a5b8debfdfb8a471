"""Attention, in layers and in functions."""

import torch
import torch.nn.functional as F

from support.rules.functions import TOKENS, layer
from support.splitting import numbers


def attended(**options):
    """Attention of tokens as heads of 2 features, among themselves."""

    def call(x):
        q = x.unflatten(-1, (4, 2)).transpose(1, 2)
        k = q[:, ::2] if options.get("enable_gqa") else q
        return F.scaled_dot_product_attention(q, k * 0.7, k.sin(), **options)

    return call, TOKENS


def multihead(options=None, **call):
    """torch.nn.MultiheadAttention, of the tokens among themselves if the call does not say otherwise."""
    options = {"batch_first": True} | (options or {})
    others = call.pop("others", lambda x: (x, x))
    made = layer(
        lambda: torch.nn.MultiheadAttention(8, 2, **options),
        lambda module, x: [result for result in module(x, *others(x), **call) if result is not None],
    )
    return made, TOKENS


def functional(options=None, others=lambda x: (x, x), query=lambda x: x, shape=(7, 2, 8), **call):
    """As other models call it, with the parameters of a layer."""

    def attend(layer, x):
        y, weights = F.multi_head_attention_forward(
            query(x), *others(x), 8, 2, layer.in_proj_weight, layer.in_proj_bias, layer.bias_k, layer.bias_v,
            layer.add_zero_attn, 0.0, layer.out_proj.weight, layer.out_proj.bias, **separate(layer), **call
        )  # fmt: skip
        return y if weights is None else (y, weights)

    def separate(layer):
        names = [f"{name}_proj_weight" for name in "qkv"]
        own = {name: getattr(layer, name) for name in names if layer.in_proj_weight is None}
        return own | {"use_separate_proj_weight": bool(own)}

    return layer(lambda: torch.nn.MultiheadAttention(8, 2, **(options or {})), attend), shape


LOWER = torch.ones(7, 7).triu(1).bool()
PADDING = torch.arange(7).expand(2, 7) > torch.tensor([[4], [5]])

ATTENTION = {
    "attention": attended(),
    "attention scaled": attended(scale=0.3),
    "attention causal": attended(is_causal=True),
    "attention of groups": attended(enable_gqa=True),
    "attention with a mask": attended(attn_mask=~LOWER),
    "attention with scores": attended(attn_mask=numbers(2, 1, 7, 7)),
    "attention with a row": attended(attn_mask=numbers(1, 7)),
    "MultiheadAttention": multihead(need_weights=False),
    "MultiheadAttention with weights": multihead(),
    "MultiheadAttention with weights of heads": multihead(average_attn_weights=False),
    "MultiheadAttention with a mask": multihead(need_weights=False, attn_mask=LOWER),
    "MultiheadAttention with masks of heads": multihead(need_weights=False, attn_mask=numbers(4, 7, 7)),
    "MultiheadAttention with padding": multihead(need_weights=False, key_padding_mask=PADDING),
    "MultiheadAttention of other keys": multihead(need_weights=False, others=lambda x: (x[:, :4], x[:, :4].sin())),
    "MultiheadAttention of more keys": multihead(others=lambda x: (torch.cat([x, x], 1),) * 2),
    "MultiheadAttention with the sequence first": multihead({"batch_first": False}),
    "functional": functional(need_weights=False),
    "functional with weights": functional(training=False),
    "functional with weights of heads": functional(average_attn_weights=False),
    "functional of one sequence": functional(shape=(7, 8)),
    "functional of the first token": functional(query=lambda x: x[:1], need_weights=False, training=False),
    "functional of other keys": functional(others=lambda x: (x[:4], x[:4].sin())),
    "functional of as many features": functional({"vdim": 6}, others=lambda x: (x, x[..., :6]), need_weights=False),
    "functional without a bias": functional({"bias": False}, need_weights=False, key_padding_mask=PADDING),
    "functional with further keys": functional({"add_bias_kv": True, "add_zero_attn": True}, attn_mask=LOWER),
    "functional causal": functional(attn_mask=LOWER, is_causal=True, need_weights=False),
    "functional with masks of heads": functional(attn_mask=numbers(4, 7, 7), key_padding_mask=PADDING.double()),
}
