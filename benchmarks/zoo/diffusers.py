"""Models of diffusers: ``pip install --no-deps diffusers huggingface_hub safetensors regex filelock httpx``."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import diffusers
import torch

from zoo.entry import Entry, Shape

UNET = {"sample_size": 16, "in_channels": 3, "out_channels": 3, "layers_per_block": 1, "norm_num_groups": 4}
BLOCKS = {"block_out_channels": (16, 32)}
KINDS: tuple[tuple[str, dict[str, object], Shape, dict[str, Shape], dict[str, object]], ...] = (
    ("UNet2DModel", UNET | BLOCKS | {
        "down_block_types": ("DownBlock2D", "AttnDownBlock2D"), "up_block_types": ("AttnUpBlock2D", "UpBlock2D"),
        "attention_head_dim": 8}, (2, 3, 16, 16), {}, {"timestep": 3}),
    ("UNet2DConditionModel", UNET | BLOCKS | {
        "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"),
        "up_block_types": ("CrossAttnUpBlock2D", "UpBlock2D"), "attention_head_dim": 8, "cross_attention_dim": 12},
     (2, 3, 16, 16), {"encoder_hidden_states": (2, 5, 12)}, {"timestep": 3}),
    ("UNet3DConditionModel", UNET | BLOCKS | {
        "down_block_types": ("CrossAttnDownBlock3D", "DownBlock3D"),
        "up_block_types": ("UpBlock3D", "CrossAttnUpBlock3D"), "attention_head_dim": 8, "cross_attention_dim": 12},
     (2, 3, 2, 16, 16), {"encoder_hidden_states": (2, 5, 12)}, {"timestep": 3}),
    ("AutoencoderKL", BLOCKS | {
        "down_block_types": ("DownEncoderBlock2D",) * 2, "up_block_types": ("UpDecoderBlock2D",) * 2,
        "norm_num_groups": 4}, (2, 3, 16, 16), {}, {}),
    ("AsymmetricAutoencoderKL", {"down_block_out_channels": (16, 32), "up_block_out_channels": (16, 32),
                                 "down_block_types": ("DownEncoderBlock2D",) * 2,
                                 "up_block_types": ("UpDecoderBlock2D",) * 2, "norm_num_groups": 4},
     (2, 3, 16, 16), {}, {}),
    ("VQModel", BLOCKS | {"down_block_types": ("DownEncoderBlock2D",) * 2, "up_block_types": ("UpDecoderBlock2D",) * 2,
                          "norm_num_groups": 4, "num_vq_embeddings": 16}, (2, 3, 16, 16), {}, {}),
    ("DiTTransformer2DModel", {"num_attention_heads": 2, "attention_head_dim": 8, "in_channels": 3, "num_layers": 2,
                               "sample_size": 16, "patch_size": 4, "norm_num_groups": 1, "num_embeds_ada_norm": 10},
     (2, 3, 16, 16), {}, {"timestep": torch.tensor([3, 4]), "class_labels": torch.tensor([1, 2])}),
    ("SD3Transformer2DModel", {"sample_size": 16, "patch_size": 2, "in_channels": 4, "num_layers": 2,
                               "attention_head_dim": 8, "num_attention_heads": 2, "joint_attention_dim": 12,
                               "caption_projection_dim": 16, "pooled_projection_dim": 10, "out_channels": 4,
                               "pos_embed_max_size": 16}, (2, 4, 16, 16),
     {"encoder_hidden_states": (2, 5, 12), "pooled_projections": (2, 10)}, {"timestep": torch.tensor([3, 4])}),
    ("PixArtTransformer2DModel", {"num_attention_heads": 2, "attention_head_dim": 8, "in_channels": 4,
                                  "num_layers": 2, "sample_size": 16, "patch_size": 2, "cross_attention_dim": 16,
                                  "caption_channels": 12, "use_additional_conditions": False}, (2, 4, 16, 16),
     {"encoder_hidden_states": (2, 5, 12)}, {"timestep": torch.tensor([3, 4])}),
    ("UVit2DModel", {"hidden_size": 32, "block_out_channels": 32, "in_channels": 16, "codebook_size": 20,
                     "vocab_size": 21, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
                     "cond_embed_dim": 16, "encoder_hidden_size": 16, "block_num_heads": 4, "num_res_blocks": 1,
                     "micro_cond_encode_dim": 8, "micro_cond_embed_dim": 40}, (2, 16, 16),
     {"encoder_hidden_states": (2, 5, 16), "pooled_text_emb": (2, 16), "micro_conds": (2, 5)}, {}),
)  # fmt: skip
"""The class, its options, the shapes of its first input and of further ones, and further arguments."""


def entries() -> Iterator[Entry]:
    """A small model of each kind."""
    for name, options, shape, others, fixed in KINDS:
        generator = torch.Generator().manual_seed(4)
        named = {key: torch.randn(own, dtype=torch.float64, generator=generator) for key, own in others.items()}
        space = (3, 4) if len(shape) == 5 else (1, 2) if len(shape) == 3 else (2, 3)
        below = 20 if name == "UVit2DModel" else 0
        make = partial(getattr(diffusers, name), **options)
        yield Entry(f"diffusers {name}", make, (shape,), space, below, {**named, **fixed})
