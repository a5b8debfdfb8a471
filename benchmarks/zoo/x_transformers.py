"""Models of x_transformers: ``pip install --no-deps x-transformers einops einx loguru frozendict``."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from x_transformers import Decoder, Encoder, TransformerWrapper, ViTransformerWrapper

from zoo.entry import Entry

VARIANTS: dict[str, dict[str, object]] = {
    "plain": {}, "rotary": {"rotary_pos_emb": True}, "ALiBi": {"alibi_pos_bias": True, "alibi_num_heads": 2},
    "relative": {"rel_pos_bias": True}, "RMSNorm": {"use_rmsnorm": True}, "GLU": {"ff_glu": True, "ff_swish": True},
    "one head of keys": {"attn_one_kv_head": True}, "memories": {"attn_num_mem_kv": 3},
    "sandwich": {"sandwich_norm": True}, "residual attention": {"residual_attn": True},
    "macaron": {"macaron": True}, "talking heads": {"attn_pre_talking_heads": True}, "top 3": {"attn_sparse_topk": 3},
    "cosine": {"attn_qk_norm": True}, "gated": {"attn_gate_values": True}, "shifted tokens": {"shift_tokens": 1},
    "residual scale": {"scale_residual": True},
}  # fmt: skip
"""Options of the layers."""


def entries() -> Iterator[Entry]:
    """A decoder and an encoder of each variant, and a transformer of images."""
    for kind in (Decoder, Encoder):
        for name, options in VARIANTS.items():

            def make(kind: type = kind, options: dict[str, object] = options) -> torch.nn.Module:
                layers = kind(dim=32, depth=2, heads=4, attn_dim_head=8, **options)
                model: torch.nn.Module = TransformerWrapper(num_tokens=40, max_seq_len=16, attn_layers=layers)
                return model

            yield Entry(f"x_transformers {kind.__name__} {name}", make, ((2, 12),), (1,), below=40)

    def images() -> torch.nn.Module:
        layers = Encoder(dim=32, depth=2, heads=4, attn_dim_head=8)
        model: torch.nn.Module = ViTransformerWrapper(image_size=32, patch_size=8, num_classes=5, attn_layers=layers)
        return model

    yield Entry("x_transformers ViT", images, ((2, 3, 32, 32),))
