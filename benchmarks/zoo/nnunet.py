"""Networks of nnU-Net: ``pip install --no-deps dynamic_network_architectures``, with timm and einops."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from dynamic_network_architectures.architectures import primus, resnet, unet, vgg

from zoo.entry import Entry, Shape


def entries() -> Iterator[Entry]:
    """Networks for images and volumes."""
    common = {"norm_op_kwargs": {"eps": 1e-5, "affine": True}, "nonlin": torch.nn.LeakyReLU, "conv_bias": True}
    plane, volume = (2, 1, 32, 32), (2, 1, 16, 16, 16)
    for name, conv, norm, shape in (
        ("2d", torch.nn.Conv2d, torch.nn.InstanceNorm2d, plane),
        ("3d", torch.nn.Conv3d, torch.nn.InstanceNorm3d, volume),
    ):
        options = {**common, "norm_op": norm}
        stages = (3, (4, 8, 16), conv, 3, (1, 2, 2))
        for kind in (unet.PlainConvUNet, unet.ResidualEncoderUNet, unet.ResidualUNet):
            blocks = (2, 2, (2, 2)) if kind is unet.PlainConvUNet else ((1, 2, 2), 2, (1, 1))
            for deep in (False, True):
                make = partial(kind, 1, *stages, *blocks, deep_supervision=deep, **options)
                yield Entry(f"nnU-Net {kind.__name__} {name}{' deep' if deep else ''}", make, (shape,))
    others: dict[str, tuple[Callable[[], torch.nn.Module], Shape]] = {
        "ResNet18_CIFAR": (partial(resnet.ResNet18_CIFAR, 3, 1), plane),
        "ResNet18": (
            partial(resnet.ResNet18, 3, 1, 3, stochastic_depth_p=0.2, squeeze_excitation=True),
            (2, 1, 32, 32, 32),
        ),
        "VGG16": (partial(vgg.VGG16, 3, 1), plane),
        "Primus": (
            partial(primus.Primus, 1, 48, (4, 4, 4), 2, 2, 2, (16, 16, 16), use_rot_pos_emb=False, drop_path_rate=0.2),
            volume,
        ),
    }
    for name, (make, shape) in others.items():
        yield Entry(f"nnU-Net {name}", make, (shape,))
