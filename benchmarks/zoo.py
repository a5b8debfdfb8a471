"""Models of torchvision and MONAI, with inputs as small as they allow."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch

_LIBRARY = torch.library.Library("torchvision", "DEF")  # which the wheel misses beside another build of torch
for _name in ("nms", "qnms"):
    _LIBRARY.define(f"{_name}(Tensor boxes, Tensor scores, float threshold) -> Tensor")

import monai.networks.nets as nets  # noqa: E402
import torchvision.models as vision  # noqa: E402

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Entry:
    """A model.

    Attributes:
        make: constructs it, with the weights of its own initialization.
        shapes: of its inputs.
    """

    name: str
    make: Callable[[], torch.nn.Module]
    shapes: tuple[Shape, ...]

    @property
    def is_large(self) -> bool:
        """Whether it has 200 million parameters or more."""
        return self.name in ("convnext_large", "regnet_y_128gf", "vit_h_14", "vit_l_16", "vit_l_32")


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
    yield from of_monai()
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
    return Entry(name, partial(vision.get_model, name, **options), (shape,) * inputs)


def of_monai() -> Iterator[Entry]:
    """Networks for volumes."""
    volume: Shape = (2, 1, 16, 16, 16)
    made: dict[str, tuple[Callable[[], torch.nn.Module], Shape]] = {
        "UNet": (partial(nets.UNet, 3, 1, 2, (4, 8, 16), (2, 2), num_res_units=2), volume),
        "BasicUNet": (partial(nets.BasicUNet, 3, 1, 2, (4, 4, 8, 8, 16, 4)), (1, 1, 32, 32, 32)),
        "SegResNet": (partial(nets.SegResNet, 3, 8, 1, 2), volume),
        "VNet": (partial(nets.VNet, 3, 1, 2), (1, 1, 32, 32, 32)),
        "DynUNet": (partial(nets.DynUNet, 3, 1, 2, [3, 3, 3], [1, 2, 2], [2, 2], filters=[4, 8, 16]), volume),
        "AHNet": (
            partial(nets.AHNet, spatial_dims=3, in_channels=1, out_channels=2, psp_block_num=3),
            (1, 1, 64, 64, 32),
        ),
        "HighResNet": (partial(nets.HighResNet, 3, 1, 2), volume),
        "DenseNet": (
            partial(nets.DenseNet, 3, 1, 2, init_features=8, growth_rate=4, block_config=(2, 2, 2)),
            (2, 1, 32, 32, 32),
        ),
    }
    for name, (make, shape) in made.items():
        yield Entry(f"MONAI {name}", make, (shape,))
