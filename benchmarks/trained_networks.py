"""The networks whose steps of training alternatives.py and phases.py measure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from distribute import SequentialResNet18, SequentialUNet3d
from memory import resnet50
from steps import Text, fno
from torch import Tensor, nn


@dataclass(frozen=True)
class Network:
    """A network, its input as a whole, and the dimension of space or of the sequence."""

    name: str
    make: Callable[[], nn.Module]
    x: Callable[[], Tensor]
    dim: int = 2


class MeanSquare(nn.Module):
    """A network with a loss: the mean over all elements of its result, or of the first of its results."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        """A number."""
        results = self.network(x)
        loss: Tensor = (results if isinstance(results, Tensor) else results[0]).square().mean()
        return loss


def grouped() -> nn.Module:
    """The U-Net with group norms alone, which no split of the batch changes."""
    model: nn.Module = SequentialUNet3d()
    for stage in [*model.down, *model.up]:
        stage[1] = nn.GroupNorm(2, stage[1].num_features)
    return model


NETWORKS = [
    Network("ResNet-18, 4 x 3 x 256 x 256", SequentialResNet18, lambda: torch.randn(4, 3, 256, 256)),
    Network("3-d U-Net, 2 x 1 x 64 cubed", SequentialUNet3d, lambda: torch.randn(2, 1, 64, 64, 64)),
    Network("3-d U-Net with group norms", grouped, lambda: torch.randn(2, 1, 64, 64, 64)),
    Network("FNO, 2 x 2 x 256 squared", lambda: fno.in_one_process().float(), lambda: torch.randn(2, 2, 256, 256)),
    Network("GPT, 4 layers of 256, 2 x 512 tokens", lambda: Text(256, 256, 8, 4, 512),
            lambda: torch.randint(256, (2, 512)), 1),
]  # fmt: skip


def convolutions() -> nn.Module:
    """Three 3-d convolutions of 16 channels."""
    return nn.Sequential(nn.Conv3d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv3d(16, 16, 3, padding=1), nn.ReLU(),
                         nn.Conv3d(16, 16, 3, padding=1))  # fmt: skip


def encoder() -> nn.Module:
    """Six layers of 256 features."""
    layer = nn.TransformerEncoderLayer(256, 8, 1024, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)


def larger_networks() -> Iterator[Network]:
    """Networks that people train; those of packages that are not installed are left out."""
    yield Network("ResNet-50, 8 x 3 x 224 squared", resnet50, lambda: torch.randn(8, 3, 224, 224))
    yield from of_transformers()
    yield Network("encoder, 6 layers of 256, 2 x 512 tokens", encoder, lambda: torch.randn(2, 512, 256), 1)
    yield from of_nnunet()
    yield Network("three Conv3d of 16, 2 x 1 x 64 cubed", convolutions, lambda: torch.randn(2, 1, 64, 64, 64))
    yield Network("FNO, 2 x 2 x 512 squared", lambda: fno.in_one_process().float(), lambda: torch.randn(2, 2, 512, 512))


def of_transformers() -> Iterator[Network]:
    """Networks of the package transformers in their published sizes."""
    try:
        import transformers as hf
    except ImportError:
        return
    image, small = (4, 3, 224, 224), hf.ViTConfig(hidden_size=384, num_attention_heads=6, intermediate_size=1536)
    text = hf.GPT2Config(n_layer=6, n_embd=512, n_head=8, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, use_cache=False)
    yield Network("ConvNeXt-T, 4 x 3 x 224 squared", lambda: hf.ConvNextModel(hf.ConvNextConfig()),
                  lambda: torch.randn(image))  # fmt: skip
    yield Network("Swin-T, 4 x 3 x 224 squared", lambda: hf.SwinModel(hf.SwinConfig(drop_path_rate=0.0)),
                  lambda: torch.randn(image))  # fmt: skip
    yield Network("ViT-S, 4 x 3 x 224 squared", lambda: hf.ViTModel(small, add_pooling_layer=False),
                  lambda: torch.randn(image))  # fmt: skip
    yield Network("GPT-2, 6 layers of 512, 2 x 512 tokens", lambda: hf.GPT2LMHeadModel(text),
                  lambda: torch.randint(text.vocab_size, (2, 512)), 1)  # fmt: skip


def of_nnunet() -> Iterator[Network]:
    """nnU-Net's plain U-Net, with the package dynamic_network_architectures."""
    try:
        from dynamic_network_architectures.architectures.unet import PlainConvUNet
    except ImportError:
        return
    options = {"norm_op": nn.InstanceNorm3d, "norm_op_kwargs": {"affine": True}, "nonlin": nn.LeakyReLU}
    yield Network(
        "nnU-Net, 2 x 1 x 64 cubed",
        lambda: PlainConvUNet(1, 5, (16, 32, 64, 128, 256), nn.Conv3d, 3, (1, 2, 2, 2, 2), 2, 2, (2,) * 4,
                              conv_bias=True, **options),
        lambda: torch.randn(2, 1, 64, 64, 64),
    )  # fmt: skip


def channels_last(network: Network) -> Network:
    """The same network with an input and weights whose channels are the last in memory; others as they are."""
    form = {4: torch.channels_last, 5: torch.channels_last_3d}.get(network.x().dim(), torch.preserve_format)

    def make() -> nn.Module:
        return network.make().to(memory_format=form)

    return replace(network, make=make, x=lambda: network.x().clone(memory_format=form))


def chosen(larger: bool, text: str, in_channels_last: bool = False) -> Iterator[Network]:
    """The networks whose names have the text."""
    networks = (network for network in (larger_networks() if larger else NETWORKS) if text in network.name)
    return map(channels_last, networks) if in_channels_last else networks
