"""Models of segmentation_models_pytorch: ``pip install --no-deps segmentation_models_pytorch``, with timm."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import segmentation_models_pytorch as smp

from zoo.entry import Entry

ENCODERS = {
    "unet": "resnet18 efficientnet-b0 mobilenet_v2 timm-regnetx_002 mit_b0 tu-convnext_atto tu-test_resnet",
    "unetplusplus": "resnet18 vgg11_bn densenet121", "manet": "resnet18 dpn68", "linknet": "resnet18 timm-gernet_s",
    "fpn": "resnet18 timm-skresnet18 timm-mobilenetv3_small_075", "pspnet": "resnet18 timm-tf_efficientnet_lite0",
    "deeplabv3": "resnet18", "deeplabv3plus": "resnet18 tu-xception41", "pan": "resnet18", "upernet": "resnet18 mit_b0",
    "segformer": "mit_b0 resnet18", "dpt": "tu-vit_tiny_patch16_224",
}  # fmt: skip
"""Encoders by the names of the models that have them."""


def entries() -> Iterator[Entry]:
    """Each model with its encoders."""
    for name, encoders in ENCODERS.items():
        for encoder in encoders.split():
            options: dict[str, object] = {"encoder_name": encoder, "encoder_weights": None, "classes": 2}
            if name == "dpt":
                options["dynamic_img_size"] = True
            size = 128 if name == "pan" else 64
            yield Entry(f"smp {name} {encoder}", partial(smp.create_model, name, **options), ((2, 3, size, size),))
    aux = {"pooling": "avg", "dropout": 0.5, "classes": 4}
    make = partial(smp.Unet, "resnet18", encoder_weights=None, decoder_attention_type="scse", aux_params=aux)
    yield Entry("smp unet scse and classes", make, ((2, 3, 64, 64),))
