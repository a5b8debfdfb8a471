"""The dimensions that must not be split where a layer of torch.nn runs on blocks, since it looks across them.

:class:`distdl.nn.Local` checks them before it calls a module, and docs/torch_nn.py writes a page of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch

from distdl.nn.base.by_dimensions import space_of
from distdl.torch_compat.layers import AnyLoss

WholeDims = Callable[[Any, int], Iterable[int]]
"""The dimensions that must not be split, from a module and the number of dimensions; they may count from the end."""


@dataclass(frozen=True)
class SplitRule:
    """The condition under which a layer of torch.nn gives on blocks the same results as on the whole.

    Attributes:
        condition: the dimensions that must not be split, in words; "" for no condition.
        whole: a function that returns these dimensions.
        anywhere: whether the rule is also checked for layers within a user's module, if it forbids all dimensions. Of
            others it is not known there which dimension is which.
        has_parameters: whether the layer has parameters, which ranks must share.
        splits_after: returns the number of workers along each dimension of the result, from the module and the number
            along each dimension of the input.
    """

    condition: str = ""
    whole: WholeDims = lambda module, n: ()
    anywhere: bool = False
    has_parameters: bool = False
    splits_after: Callable[..., list[int]] = lambda module, shape: shape


def _all_dims(module: Any, n: int) -> Iterable[int]:
    return range(n)


def _all_but_batch(module: Any, n: int) -> Iterable[int]:
    return range(1, n)


def _last(count: int) -> WholeDims:
    return lambda module, n: range(-count, 0)


def _option_dim(module: Any, n: int) -> Iterable[int]:
    """The option ``dim``; torch.nn chooses a dimension if it is None."""
    implicit = 0 if n in (0, 1, 3) else 1
    return (implicit if module.dim is None else module.dim,)


def _all_if_random(module: Any, n: int) -> Iterable[int]:
    return range(n) if module.training and getattr(module, "p", 1) > 0 else ()


def _dims_of_batch_norm(module: Any, n: int) -> Iterable[int]:
    return range(n) if module.training or module.running_mean is None else (1,)


def _dims_of_instance_norm(module: Any, n: int) -> Iterable[int]:
    space = space_of(module) or 0
    by_channel = module.affine or module.running_mean is not None
    statistics = module.training or module.running_mean is None
    return [*range(-space, 0)] * statistics + [-space - 1] * by_channel


def _dims_of_embedding(module: Any, n: int) -> Iterable[int]:
    return range(n) if module.max_norm is not None or module.sparse else ()


def _all_but_batch_of_sequence(module: Any, n: int) -> Iterable[int]:
    batch = None if n < 3 else 0 if module.batch_first else 1
    return [d for d in range(n) if d != batch]


def _after_flatten(module: torch.nn.Flatten, shape: list[int]) -> list[int]:
    n = len(shape)
    return [*shape[: module.start_dim % n + 1], *shape[module.end_dim % n + 1 :]]


def _after_unflatten(module: torch.nn.Unflatten, shape: list[int]) -> list[int]:
    d, sizes = cast(int, module.dim) % len(shape), cast(Sequence[int], module.unflattened_size)
    return [*shape[:d], *[1] * len(sizes), *shape[d + 1 :]]


def _dims_of_loss(module: Any, n: int) -> Iterable[int]:
    kind = torch_class(module).__name__
    batch = 1 if kind == "CTCLoss" else 0
    has_batch = kind in _LOSSES_OF_ELEMENTS or n > batch + 1
    return [d for d in range(n) if module.reduction != "none" or d != batch or not has_batch]


_LOSSES_OF_ELEMENTS = (
    "BCELoss", "BCEWithLogitsLoss", "GaussianNLLLoss", "HingeEmbeddingLoss", "HuberLoss", "KLDivLoss", "L1Loss",
    "MSELoss", "MarginRankingLoss", "PoissonNLLLoss", "SmoothL1Loss", "SoftMarginLoss",
)  # fmt: skip
"""The losses of single elements; other losses look across the features or the classes."""


_ELEMENTWISE = (
    "CELU", "ELU", "GELU", "Hardshrink", "Hardsigmoid", "Hardswish", "Hardtanh", "Identity", "LeakyReLU", "LogSigmoid",
    "Mish", "ReLU", "ReLU6", "SELU", "SiLU", "Sigmoid", "Softplus", "Softshrink", "Softsign", "Tanh", "Tanhshrink",
    "Threshold",
)  # fmt: skip
_RECURRENT = SplitRule("time and features; the batch may be split", _all_but_batch_of_sequence, has_parameters=True)
_RECURRENT_CELL = SplitRule("features; the batch may be split", _last(1), has_parameters=True)

_BATCH_NORM = SplitRule(
    "channels, and in training any dimension", _dims_of_batch_norm, anywhere=True, has_parameters=True
)
_INSTANCE_NORM = SplitRule("space, and channels with parameters", _dims_of_instance_norm, has_parameters=True)
_DROPOUT = SplitRule("any dimension, in training", _all_if_random, anywhere=True)
_NORMALIZED = SplitRule(
    "the normalized dimensions", lambda module, n: range(-len(module.normalized_shape), 0), has_parameters=True
)
_NOT_BATCH = SplitRule("anything but the batch", _all_but_batch)
_ALONG_DIM = SplitRule("the dimension it looks along", _option_dim)

SPLIT_RULES: Mapping[str, SplitRule] = {
    **dict.fromkeys(_ELEMENTWISE, SplitRule()),
    **dict.fromkeys(("RNN", "LSTM", "GRU"), _RECURRENT),
    **dict.fromkeys(("RNNCell", "LSTMCell", "GRUCell"), _RECURRENT_CELL),
    **dict.fromkeys(("Linear", "Bilinear"), SplitRule("features", _last(1), has_parameters=True)),
    **dict.fromkeys(("Softmax", "LogSoftmax", "Softmin", "GLU", "CosineSimilarity"), _ALONG_DIM),
    "Softmax2d": SplitRule("channels", lambda module, n: (-3,)),
    "PReLU": SplitRule("channels", lambda module, n: (1,) if module.num_parameters > 1 else (), has_parameters=True),
    **dict.fromkeys(("LayerNorm", "RMSNorm"), _NORMALIZED),
    "GroupNorm": SplitRule("anything but the batch", _all_but_batch, has_parameters=True),
    **dict.fromkeys(("CrossMapLRN2d", "LocalResponseNorm"), SplitRule("channels", lambda module, n: (1,))),
    **{f"BatchNorm{dims}d": _BATCH_NORM for dims in (1, 2, 3)},
    **{f"InstanceNorm{dims}d": _INSTANCE_NORM for dims in (1, 2, 3)},
    **dict.fromkeys(
        ("Dropout", "Dropout1d", "Dropout2d", "Dropout3d", "AlphaDropout", "FeatureAlphaDropout", "RReLU"), _DROPOUT
    ),
    "Embedding": SplitRule("anything, with max_norm or sparse", _dims_of_embedding, anywhere=True, has_parameters=True),
    "EmbeddingBag": SplitRule("the entries of a bag", _all_but_batch, has_parameters=True),
    **dict.fromkeys(
        ("MultiheadAttention", "Transformer", "TransformerEncoder", "TransformerDecoder", "TransformerEncoderLayer",
         "TransformerDecoderLayer"),
        SplitRule("any dimension", _all_dims, has_parameters=True),
    ),
    **{f"{kind}{dims}d": SplitRule("channels and space", _last(dims + 1), has_parameters=True)
       for kind in ("Conv", "ConvTranspose") for dims in (1, 2, 3)},
    **{f"{kind}{dims}d": SplitRule("space", _last(dims))
       for kind in ("MaxPool", "AvgPool", "LPPool", "AdaptiveMaxPool", "AdaptiveAvgPool", "MaxUnpool",
                    "ConstantPad", "ZeroPad", "ReflectionPad", "ReplicationPad", "CircularPad")
       for dims in (1, 2, 3)},
    **{f"FractionalMaxPool{dims}d": SplitRule("any dimension", _all_dims, anywhere=True) for dims in (2, 3)},
    **dict.fromkeys(("Upsample", "UpsamplingNearest2d", "UpsamplingBilinear2d"),
                    SplitRule("space", lambda module, n: range(2, n))),
    "ChannelShuffle": SplitRule("channels", lambda module, n: (1,)),
    "PixelShuffle": SplitRule("channels", lambda module, n: (-3,)),
    "PixelUnshuffle": SplitRule("channels and space", _last(3)),
    **dict.fromkeys(("Fold", "Unfold"), _NOT_BATCH),
    "Flatten": SplitRule("the flattened dimensions",
                         lambda module, n: range(module.start_dim % n, module.end_dim % n + 1),
                         splits_after=_after_flatten),
    "Unflatten": SplitRule("the dimension it looks along", lambda module, n: (module.dim,),
                           splits_after=_after_unflatten),
    "PairwiseDistance": SplitRule("the last dimension", _last(1)),
    "AdaptiveLogSoftmaxWithLoss": SplitRule("any dimension", _all_dims, has_parameters=True),
}  # fmt: skip
"""The layers of torch.nn that give on blocks what they give on the whole, by name, with their conditions."""

_LAZY = "it would take its shapes from a block; call it once on one process, or give the shapes to {name}"
REFUSED = {
    "DataParallel": "it splits the batch over devices of one process, again; split the batch by P_x",
    "NLLLoss2d": "it is an older name of NLLLoss; use DistributedNLLLoss",
    "RNNBase": "it computes nothing; the layers that derive from it work in Local",
    "RNNCellBase": "it computes nothing; the cells that derive from it work in Local",
    **{
        f"Lazy{name}": _LAZY.format(name=f"Distributed{name}")
        for name in (
            "Linear", *(f"{kind}{dims}d" for kind in ("BatchNorm", "Conv", "ConvTranspose", "InstanceNorm")
                        for dims in (1, 2, 3)),
        )
    },
}  # fmt: skip
"""The layers of torch.nn that are refused, with the reason or a replacement."""


def rule_of(kind: type[torch.nn.Module]) -> SplitRule | None:
    """The rule of a class of torch.nn; None for other classes, and classes that never work."""
    name = kind.__name__
    if getattr(torch.nn, name, None) is not kind:
        return None
    if issubclass(kind, AnyLoss):
        return SplitRule("any dimension, or with reduction='none' anything but the batch", _dims_of_loss)
    return SPLIT_RULES.get(name)


def torch_class(module: torch.nn.Module) -> type[torch.nn.Module]:
    """The class of torch.nn that the module's class is or derives from."""
    return next(kind for kind in type(module).__mro__ if getattr(torch.nn, kind.__name__, None) is kind)
