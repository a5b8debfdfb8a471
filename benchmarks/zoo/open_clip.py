"""Models of open_clip: ``pip install --no-deps open_clip_torch timm ftfy regex``."""

from __future__ import annotations

from collections.abc import Iterator

import open_clip
import torch

from zoo.entry import Entry

TEXT: dict[str, object] = {"context_length": 12, "vocab_size": 50, "width": 32, "heads": 4, "layers": 2}
IMAGE: dict[str, object] = {"image_size": 32, "layers": 2, "width": 32, "head_width": 8, "patch_size": 8}
KINDS: dict[str, tuple[str, dict[str, object], dict[str, object]]] = {
    "CLIP": ("CLIP", IMAGE, TEXT),
    "CLIP of a ResNet": ("CLIP", {"image_size": 64, "layers": [1, 1, 1, 1], "width": 8, "patch_size": None}, TEXT),
    "CLIP with pooling": ("CLIP", IMAGE | {"pool_type": "avg", "no_ln_pre": True}, TEXT | {"no_causal_mask": True}),
    "CLIP with attentional pooling": ("CLIP", IMAGE | {"attentional_pool": True, "attn_pooler_queries": 4,
                                                       "attn_pooler_heads": 2}, TEXT),
    "CustomTextCLIP": ("CustomTextCLIP", IMAGE, TEXT),
}  # fmt: skip
"""The class, and the options of both towers."""


def entries() -> Iterator[Entry]:
    """A small model of each kind, with images in blocks and whole texts."""
    for name, (kind, image, text) in KINDS.items():

        def make(kind: str = kind, image: object = image, text: object = text) -> torch.nn.Module:
            model: torch.nn.Module = getattr(open_clip, kind)(embed_dim=16, vision_cfg=image, text_cfg=text)
            return model

        size = 64 if "ResNet" in name else 32
        tokens = torch.randint(1, 49, (2, 12), generator=torch.Generator().manual_seed(4))
        yield Entry(f"open_clip {name}", make, ((2, 3, size, size),), options={"text": tokens})
