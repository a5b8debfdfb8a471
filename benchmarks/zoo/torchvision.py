"""Models of torchvision: ``pip install --no-deps torchvision==0.28.0 pillow``."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torchvision.models as vision

from zoo.entry import Entry, Shape

LARGE = ("convnext_large", "regnet_y_128gf", "regnet_y_32gf", "vgg", "vit_h_14", "vit_l_16", "vit_l_32")
SLOW = (
    "mvit",
    "maxvit",
    "swin3d",
    "raft",
    "_32gf",
    "_16gf",
    "vgg",
    "_b",
    "_v2_l",
    "wide",
    "inception",
    "101",
    "152",
    "201",
)
"""Parts of the names of models that take long, and come last."""


def entries() -> Iterator[Entry]:
    """All models, the fast ones first."""
    names = [name for name in vision.list_models() if not name.startswith("quantized")]
    slow = [name for name in names if any(part in name for part in SLOW)]
    yield from (of_torchvision(name) for name in names if name not in slow)
    yield from (of_torchvision(name) for name in slow)


def of_torchvision(name: str) -> Entry:
    """A model without weights that were trained."""
    kind = vision.get_model_builder(name).__module__
    shape: Shape = (2, 3, 64, 64)
    options: dict[str, object] = {"weights": None}
    inputs = 1
    if ".segmentation." in kind or ".detection." in kind:
        options["weights_backbone"] = None
    if ".video." in kind:
        shape = (1, 3, 16, 224, 224) if "mvit" in name or name == "s3d" else (2, 3, 4, 64, 64)
    if ".optical_flow." in kind:
        shape, inputs = (1, 3, 128, 128), 2
    if name in ("googlenet", "inception_v3"):
        options["init_weights"] = False
    if name == "inception_v3":
        shape = (2, 3, 299, 299)
    if name.startswith("vit"):
        options["image_size"] = 28 if "_14" in name else 32
        shape = (2, 3, 28, 28) if "_14" in name else (2, 3, 32, 32)
    if name == "maxvit_t":
        shape = (1, 3, 224, 224)
    return Entry(name, partial(vision.get_model, name, **options), (shape,) * inputs, is_large=name.startswith(LARGE))
