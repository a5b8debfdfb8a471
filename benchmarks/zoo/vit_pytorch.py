"""Models of vit_pytorch: ``pip install --no-deps vit_pytorch einops einx torch-einops-utils``."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from functools import partial

import torch
import vit_pytorch

from zoo.entry import Entry, Shape

SIZES: dict[str, object] = {
    "cls_depth": 1, "depth": 2, "dim": 32, "dim_head": 8, "frame_patch_size": 2, "frames": 4, "freq_patch_size": 8,
    "heads": 2, "image_patch_size": 8, "image_size": 32, "max_tokens_per_depth": (8, 4), "mlp_dim": 32, "mlp_mult": 2,
    "num_classes": 5, "num_residual_streams": 2, "num_slots": 4, "patch_size": 8, "seq_len": 64, "spatial_depth": 1,
    "temporal_depth": 1, "reduction_factor": (8, 4, 2, 1),
}  # fmt: skip
"""What each model is made with, by the names of arguments without a default."""
OTHERS: dict[str, dict[str, object]] = {
    "cct": {"img_size": 32, "embedding_dim": 32, "num_layers": 2, "num_heads": 2, "mlp_ratio": 2, "num_classes": 5},
    "cct_3d": {
        "img_size": 32, "num_frames": 4, "embedding_dim": 32, "num_layers": 2, "num_heads": 2, "mlp_ratio": 2,
        "num_classes": 5,
    },
    "cross_vit": {"sm_dim": 16, "lg_dim": 32, "sm_patch_size": 8},
    "cvt": {"s2_depth": 1, "s3_depth": 1},
    "levit": {"dim": (16, 32, 48), "heads": (2, 2, 2), "depth": 1, "image_size": 64},
    "look_vit": {"highres_patch_size": 4},
    "looped_vit": {"image_size": 32, "patch_size": 8, "pre_loop_depth": 1, "post_loop_depth": 1, "loop_depth": 2},
    "max_vit": {"depth": (1, 1), "window_size": 4},
    "max_vit_with_registers": {"depth": (1, 1), "window_size": 4},
    "mobile_vit": {
        "image_size": (64, 64), "dims": [16, 24, 32], "channels": [8, 8, 16, 16, 24, 24, 32, 32, 32, 32, 48],
    },
    "nest": {"num_hierarchies": 2, "block_repeats": (1, 1), "patch_size": 4},
    "pit": {"depth": (1, 1)},
    "regionvit": {"dim": (8, 16, 32, 64), "depth": (1, 1, 1, 1), "window_size": 1},
    "scalable_vit": {"depth": (1, 1, 1, 1), "heads": (1, 2, 2, 2), "window_size": (4, 4, None, None)},
    "twins_svt": {
        "s1_local_patch_size": 2, "s2_local_patch_size": 2, "s3_local_patch_size": 1, "s4_local_patch_size": 1,
        "s3_depth": 1, "s4_depth": 1, "s1_global_k": 2, "s2_global_k": 2, "s3_global_k": 2, "s4_global_k": 2,
    },
}  # fmt: skip
"""Further arguments, by the name of the module."""
LEFT_OUT = {
    "local_vit", "sep_vit", "crossformer", "t2t", "vit_nd", "vit_nd_pope", "vit_nd_rotary", "vat_siglip", "na_vit",
    "na_vit_nested_tensor", "na_vit_nested_tensor_3d",
}  # fmt: skip
"""Modules whose models take lists of images, or fail in one process."""


def entries() -> Iterator[Entry]:
    """The last class of each module that takes a single tensor, if all its arguments are known."""
    for found in pkgutil.iter_modules(vit_pytorch.__path__):
        try:
            module = importlib.import_module(f"vit_pytorch.{found.name}")
        except ImportError:
            continue  # needs further packages
        own = [kind for kind in vars(module).values() if inspect.isclass(kind) and kind.__module__ == module.__name__]
        kinds = [kind for kind in own if issubclass(kind, torch.nn.Module)]
        if not kinds or found.name in LEFT_OUT:
            continue
        signature = inspect.signature(kinds[-1].__init__).parameters
        wanted = {name for name, own in signature.items() if own.default is own.empty and own.kind < own.VAR_KEYWORD}
        options = {name: SIZES[name] for name in wanted | {"dim_head"} if name in signature and name in SIZES}
        options |= OTHERS.get(found.name, {})
        if "ndim" in wanted:
            options |= {"ndim": 2, "input_shape": (32, 32)}
        if wanted - {"self"} <= options.keys():
            yield Entry(f"vit_pytorch {found.name}", partial(kinds[-1], **options), *_inputs(options))


def _inputs(options: dict[str, object]) -> tuple[tuple[Shape, ...], tuple[int, ...]]:
    """The shape of a series, a video or an image, and its dimensions of space."""
    if "seq_len" in options:
        return ((2, 3, 64),), (2,)
    if "frames" in options or "num_frames" in options:
        return ((2, 3, 4, 32, 32),), (3, 4)
    own = options.get("image_size", options.get("img_size", 32 if "ndim" in options else 64))
    size = own if isinstance(own, int) else 64
    return ((2, 3, size, size),), (2, 3)
