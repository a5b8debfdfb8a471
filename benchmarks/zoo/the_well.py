"""Benchmarks of the Well: ``pip install --no-deps the_well neuraloperator timm einops``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from the_well.benchmark import models

from zoo.entry import Entry

OPTIONS: dict[str, dict[str, object]] = {
    "UNetClassic": {"init_features": 4},
    "UNetConvNext": {"init_features": 4},
    "DilatedResNet": {"hidden_dim": 8, "blocks": 2},
    "ReFNO": {"hidden_dim": 8, "blocks": 2},
    "AViT": {"hidden_dim": 48, "num_heads": 4, "processor_blocks": 2, "drop_path": 0.2},
}
LAST = ("ReFNO", "AViT")
"""Models that take channels last."""


def entries() -> Iterator[Entry]:
    """Each model for images and for volumes."""
    for name, options in OPTIONS.items():
        for dims, size in ((2, 32), (3, 16)):
            sizes = (size,) * dims
            kind: Callable[..., torch.nn.Module] = getattr(models, name)
            shape = (2, *sizes, 3) if name in LAST else (2, 3, *sizes)
            space = (1, 2) if name in LAST else (2, 3)
            make = partial(kind, 3, 2, dims, sizes, **options)
            yield Entry(f"the Well {name} {dims}d", make, (shape,), space)
    make = partial(models.UNetClassic, 3, 2, 2, (32, 32), 4, gradient_checkpointing=True)
    yield Entry("the Well UNetClassic with checkpoints", make, ((2, 3, 32, 32),))
