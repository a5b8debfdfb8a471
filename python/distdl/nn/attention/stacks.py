"""Stacks of transformer layers, which agree on a call together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Self, cast

import torch
import torch.nn.functional as F

from distdl.collective.construction import PartitionLike
from distdl.nn.attention.dropped import Dropping
from distdl.nn.attention.transformer import (
    Activation,
    DistributedTransformerDecoderLayer,
    DistributedTransformerEncoderLayer,
    TransformerLayer,
    name_of,
)
from distdl.nn.layer import Layer
from distdl.nn.options import integer
from distdl.parameters.initial import Initializer, fill

__all__ = ["DistributedTransformer", "DistributedTransformerDecoder", "DistributedTransformerEncoder"]


def _like(values: torch.Tensor, name: str) -> Initializer:
    """The first values of a norm: its own, or those of torch.nn if they are on the meta device."""
    if values.is_meta:
        return torch.nn.init.ones_ if name == "weight" else torch.nn.init.zeros_
    own = values.detach().clone()
    return lambda tensor: tensor.copy_(own)


class Around(Layer):
    """A layer of layers. It votes for all of them: the layers within vote where their own structure changed."""

    def _agreed_parameters(self) -> list[torch.Tensor]:
        """Those of the layers within, too, since these follow what this layer agreed on."""
        own = self._declared_parameters()
        return [*own, *(one for one in self.parameters() if all(one is not other for other in own))]

    def compared_each_call(self) -> str:
        """What the layers within drop, and their modes."""
        within = [one for one in self.modules() if one is not self and isinstance(one, Layer)]
        modes = [one.mode() if isinstance(one, Dropping) else (one.training, getattr(one, "p", None)) for one in within]
        return f"dropout within {modes}"

    @classmethod
    def from_sequential(
        cls, module: torch.nn.Module, P_x: PartitionLike, *partitions: PartitionLike, root: int = 0, **more: object
    ) -> Self:
        """The layer that does what a layer of torch.nn does; see :meth:`distdl.nn.Layer.from_sequential`.

        The layers within have their own options and modes. TypeError if this layer cannot express one of them.
        """
        made = super().from_sequential(module, P_x, *partitions, root=root, **more)
        modes = {name: one.training for name, one in module.named_modules()}
        for name, one in made.named_modules():
            if isinstance(one, Layer) and name in modes:
                one.train(modes[name])
        return made


def _are_equal(options: Sequence[Mapping[str, object]]) -> bool:
    return all(one == options[0] for one in options)


class Stack(Around):
    """The common part of encoders and decoders: copies of a layer, and a norm behind them.

    Attributes:
        of: the class of the layers.
        option: the name of the option that is the layer.
    """

    of: ClassVar[type[TransformerLayer]]
    option: ClassVar[str]
    num_layers: int

    def check_options(self) -> None:
        name = type(self).__name__
        given, norm = self.given[self.option], self.given["norm"]
        each = given if isinstance(given, torch.nn.ModuleList) and len(given) else [given]
        if not all(isinstance(one, (Layer, *self.of.sequential_classes())) for one in each):
            raise TypeError(f"{name}: {self.option}={given!r}; it has to be a {self.of.__name__}, or torch.nn's")
        if integer(name, self.num_layers, "num_layers") < 1:
            raise ValueError(f"{name}: num_layers={self.num_layers}; it must be at least 1")
        if isinstance(given, torch.nn.ModuleList) and len(given) != self.num_layers:
            raise ValueError(f"{name}: num_layers={self.num_layers}; {self.option} has {len(given)} layers")
        if norm is not None and not isinstance(norm, Layer | torch.nn.LayerNorm):
            raise TypeError(f"{name}: norm={norm!r}; it has to be a layer of distdl, a torch.nn.LayerNorm, or None")
        del self.__dict__[self.option], self.__dict__["norm"]
        self.layers = torch.nn.ModuleList()
        self.norm: torch.nn.Module | None = norm if norm is None or isinstance(norm, Layer) else torch.nn.Module()
        self._normalized: tuple[list[int], float] | None = None
        if isinstance(norm, torch.nn.LayerNorm):
            self._declare_norm(norm)

    def _declare_norm(self, norm: torch.nn.LayerNorm) -> None:
        shape = list(norm.normalized_shape)
        self._normalized = shape, norm.eps
        if len(shape) != 1:
            raise ValueError(f"{type(self).__name__}: norm={norm!r}; it must be over the features alone")
        for name in ("weight", "bias"):
            values = getattr(norm, name)
            if values is not None:
                self.declare_parameter(
                    f"norm.{name}",
                    self.grid,
                    shape,
                    (None,),
                    initialize=_like(values, name),
                    dtype=values.dtype,
                    device=values.device if values.device.type not in ("cpu", "meta") else None,
                )

    def further_compared(self) -> dict[str, object]:
        return {name: name_of(type(self.given[name])) for name in (self.option, "norm")}

    def append_layers(self) -> None:
        """Make the layers, all with the parameters of the one that was given; or take those of a list."""
        given = self.given[self.option]
        if isinstance(given, torch.nn.ModuleList):
            with torch.random.fork_rng(devices=[]):
                for one in given:
                    self.layers.append(one if isinstance(one, Layer) else self.of.from_sequential(one, self.P_x))
            return
        prototype = given if isinstance(given, Layer) else self.of.from_sequential(given, self.P_x)
        partitions = [getattr(prototype, name) for name in prototype.partitions]
        for _ in range(self.num_layers):
            with torch.random.fork_rng(devices=[]):  # copies draw no numbers, as in torch.nn
                copy = type(prototype)(*partitions, **prototype.given)  # type: ignore[arg-type]
            copy.load_state_dict(prototype.state_dict())
            for one, other in zip(copy.parameters(), prototype.parameters(), strict=True):
                one.requires_grad_(other.requires_grad)
            self.layers.append(copy.train(prototype.training))

    def normalized(self, x: torch.Tensor) -> torch.Tensor:
        """Behind the norm, if there is one."""
        if self._normalized is not None:
            if not self.grid.active:
                return self.without_part(x)
            parameters, (shape, eps) = self.parameters_by_name(), self._normalized
            return F.layer_norm(x, shape, parameters.get("norm.weight"), parameters.get("norm.bias"), eps)
        if self.norm is None:
            return x
        result: torch.Tensor = self.norm(x)
        return result

    def extra_repr(self) -> str:
        """Without the layer that was given, which is shown as the layers within."""
        return f"num_layers={self.num_layers}, P_x={self.P_x}"

    @classmethod
    def options_of(cls, module: torch.nn.Module) -> dict[str, object]:
        """The options of this layer's constructor, as a layer of torch.nn has them."""
        layers = module.layers
        given = layers[0] if _are_equal([cls.of.options_of(one) for one in layers]) else layers
        return {cls.option: given, "num_layers": len(layers), "norm": module.norm}

    @classmethod
    def _unfit(cls, module: object) -> TypeError | None:
        problem = super()._unfit(module)
        if problem is None:
            assert isinstance(module, torch.nn.Module)
            for i, one in enumerate(module.layers):
                problem = problem or cls._unfit_within(one, i)
        return problem

    @classmethod
    def _unfit_within(cls, layer: torch.nn.Module, i: int) -> TypeError | None:
        problem = cls.of._unfit(layer)
        return None if problem is None else TypeError(f"{cls.__name__}: layers[{i}] does not fit: {problem}")


class DistributedTransformerEncoder(Stack):
    """A stack of encoder layers: ``torch.nn.TransformerEncoder`` in blocks.

    Args:
        P_x: the partition of the input.
        encoder_layer: a :class:`distdl.nn.DistributedTransformerEncoderLayer` on P_x, or a
            ``torch.nn.TransformerEncoderLayer``. The layers are copies of it. Or a ``torch.nn.ModuleList`` of
            num_layers such layers, each with options of its own; those of distdl are taken as they are.
        num_layers: how many.
        norm: a layer behind them: one of distdl, or a ``torch.nn.LayerNorm`` over the features.
        enable_nested_tensor, mask_check: of torch.nn's fast path; without meaning here. Padded tokens have results
            like all others, as in torch.nn in training.

    Shape:
        As of the layers. The masks are given to each of them.

    Raises:
        TypeError, ValueError: on all ranks, if an option has no meaning.

    One vote a call. Constructing is collective over the communicator that P_x comes from, calling over its ranks.

    Source: https://docs.pytorch.org/docs/stable/generated/torch.nn.TransformerEncoder.html.
    """

    tensors: ClassVar[tuple[str, ...]] = ("src", "mask", "src_key_padding_mask")
    optional: ClassVar[tuple[str, ...]] = tensors[1:]
    of: ClassVar[type[TransformerLayer]] = DistributedTransformerEncoderLayer
    option: ClassVar[str] = "encoder_layer"
    enable_nested_tensor: bool
    mask_check: bool

    def __init__(
        self,
        P_x: PartitionLike,
        encoder_layer: torch.nn.Module,
        num_layers: int,
        norm: torch.nn.Module | None = None,
        enable_nested_tensor: bool = True,
        mask_check: bool = True,
    ) -> None:
        super().__init__(locals())
        self.append_layers()

    def compute(
        self,
        src: torch.Tensor,
        mask: torch.Tensor | None = None,
        src_key_padding_mask: torch.Tensor | None = None,
        is_causal: bool | None = None,
    ) -> torch.Tensor:
        """Apply the layers one after the other."""
        for layer in self.layers:
            src = layer(src, mask, src_key_padding_mask, bool(is_causal))
        return self.normalized(src)


class DistributedTransformerDecoder(Stack):
    """A stack of decoder layers: ``torch.nn.TransformerDecoder`` in blocks.

    Args:
        P_x: the partition of the target, and of the memory.
        decoder_layer: a :class:`distdl.nn.DistributedTransformerDecoderLayer` on P_x, or a
            ``torch.nn.TransformerDecoderLayer``. The layers are copies of it. Or a ``torch.nn.ModuleList`` of
            num_layers such layers, each with options of its own; those of distdl are taken as they are.
        num_layers: how many.
        norm: a layer behind them: one of distdl, or a ``torch.nn.LayerNorm`` over the features.

    Shape:
        As of the layers. The masks are given to each of them.

    Raises:
        TypeError, ValueError: on all ranks, if an option has no meaning.

    One vote a call. Constructing is collective over the communicator that P_x comes from, calling over its ranks.

    Source: https://docs.pytorch.org/docs/stable/generated/torch.nn.TransformerDecoder.html.
    """

    tensors: ClassVar[tuple[str, ...]] = DistributedTransformerDecoderLayer.tensors
    optional: ClassVar[tuple[str, ...]] = DistributedTransformerDecoderLayer.optional
    of: ClassVar[type[TransformerLayer]] = DistributedTransformerDecoderLayer
    option: ClassVar[str] = "decoder_layer"

    def __init__(
        self,
        P_x: PartitionLike,
        decoder_layer: torch.nn.Module,
        num_layers: int,
        norm: torch.nn.Module | None = None,
    ) -> None:
        super().__init__(locals())
        self.append_layers()

    def compute(
        self,
        tgt: torch.Tensor,
        memory: torch.Tensor,
        tgt_mask: torch.Tensor | None = None,
        memory_mask: torch.Tensor | None = None,
        tgt_key_padding_mask: torch.Tensor | None = None,
        memory_key_padding_mask: torch.Tensor | None = None,
        tgt_is_causal: bool | None = None,
        memory_is_causal: bool = False,
    ) -> torch.Tensor:
        """Apply the layers one after the other."""
        masks = (tgt_mask, memory_mask, tgt_key_padding_mask, memory_key_padding_mask)
        for layer in self.layers:
            tgt = layer(tgt, memory, *masks, bool(tgt_is_causal), bool(memory_is_causal))
        return self.normalized(tgt)


_STACKS: Mapping[str, type[Stack]] = {
    "encoder": DistributedTransformerEncoder,
    "decoder": DistributedTransformerDecoder,
}
_SHARED = ("d_model", "nhead", "dim_feedforward", "dropout", "activation", "layer_norm_eps", "batch_first",
           "norm_first", "bias", "device", "dtype", "method")  # fmt: skip


class DistributedTransformer(Around):
    """An encoder and a decoder: ``torch.nn.Transformer`` in blocks.

    Args:
        P_x: the partition of the source and of the target: ``[batch, sequence, 1]`` with batch_first, ``[sequence,
            batch, 1]`` without, and ``[sequence, 1]`` for tensors without a batch. Features are not split.
        d_model, nhead, num_encoder_layers, num_decoder_layers, dim_feedforward, dropout, activation: as in
            ``torch.nn.Transformer``.
        custom_encoder, custom_decoder: layers of distdl.
        layer_norm_eps, batch_first, norm_first, bias, device, dtype: as in ``torch.nn.Transformer``.
        method: how workers along the sequence share the work: see
            :class:`distdl.nn.DistributedScaledDotProductAttention`.

    Shape:
        src, tgt and the result, of tgt's shape, in blocks of their own along the sequence; zero volume on all other
        ranks. The masks are as those of :class:`distdl.nn.DistributedMultiheadAttention`.

    Attributes:
        encoder, decoder: the parameters, with the names of torch.nn.

    Raises:
        TypeError, ValueError: on all ranks, if options or tensors have no meaning together.

    One vote a call. Constructing is collective over the communicator that P_x comes from, calling over its ranks.

    Source: https://docs.pytorch.org/docs/stable/generated/torch.nn.Transformer.html.
    """

    tensors: ClassVar[tuple[str, ...]] = (
        "src",
        "tgt",
        "src_mask",
        "tgt_mask",
        "memory_mask",
        "src_key_padding_mask",
        "tgt_key_padding_mask",
        "memory_key_padding_mask",
    )
    optional: ClassVar[tuple[str, ...]] = tensors[2:]
    d_model: int
    nhead: int
    num_encoder_layers: int
    num_decoder_layers: int
    dim_feedforward: int
    dropout: float
    activation: str | Activation
    custom_encoder: torch.nn.Module | None
    custom_decoder: torch.nn.Module | None
    layer_norm_eps: float
    batch_first: bool
    norm_first: bool
    method: str | None

    def __init__(
        self,
        P_x: PartitionLike,
        d_model: int = 512,
        nhead: int = 8,
        num_encoder_layers: int = 6,
        num_decoder_layers: int = 6,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: str | Activation = F.relu,
        custom_encoder: torch.nn.Module | None = None,
        custom_decoder: torch.nn.Module | None = None,
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        method: str | None = None,
    ) -> None:
        super().__init__(locals())
        self.encoder = self._part(DistributedTransformerEncoder, self.custom_encoder, self.num_encoder_layers)
        self.decoder = self._part(DistributedTransformerDecoder, self.custom_decoder, self.num_decoder_layers)
        self._reset()

    def check_options(self) -> None:
        for which in ("custom_encoder", "custom_decoder"):
            custom = getattr(self, which)
            if custom is not None and not isinstance(custom, Layer):
                raise TypeError(f"{type(self).__name__}: {which}={custom!r}; it has to be a layer of distdl, or None")

    def further_compared(self) -> dict[str, object]:
        custom = {name: name_of(type(self.given[name])) for name in ("custom_encoder", "custom_decoder")}
        return {"activation": name_of(self.activation), **custom}

    def _part(self, kind: type[Stack], custom: torch.nn.Module | None, layers: int) -> torch.nn.Module:
        if custom is not None:
            return custom
        layer = kind.of(self.P_x, **{name: self.given[name] for name in _SHARED})  # type: ignore[arg-type]
        own: dict[str, object] = {name: self.given[name] for name in ("device", "dtype")}
        norm = torch.nn.LayerNorm(self.d_model, self.layer_norm_eps, bias=bool(self.given["bias"]), **own)
        return kind(self.P_x, layer, layers, norm)  # type: ignore[call-arg, arg-type]

    def _reset(self) -> None:
        """The first values of torch.nn, in its order."""
        for prefix, module in self.named_modules():
            layouts = getattr(module, "layouts", {}) if prefix else {}
            whole = [name for name, _ in module.named_parameters() if name in layouts]
            for name in whole:
                if len(layouts[name].shape) > 1:
                    fill(module.get_parameter(name), layouts[name], torch.nn.init.xavier_uniform_)

    @classmethod
    def options_of(cls, module: torch.nn.Module) -> dict[str, object]:
        """The options of this layer's constructor, as a layer of torch.nn has them."""
        options: dict[str, object] = {}
        for name, kind in _STACKS.items():
            stack = getattr(module, name)
            options |= kind.of.options_of(stack.layers[0])
            options[f"num_{name}_layers"] = len(stack.layers)
        return options

    @classmethod
    def _unfit(cls, module: object) -> TypeError | None:
        problem = super()._unfit(module)
        for name, kind in _STACKS.items():
            problem = problem or kind._unfit(getattr(module, name))
        return problem

    @classmethod
    def from_sequential(
        cls, module: torch.nn.Module, P_x: PartitionLike, *partitions: PartitionLike, root: int = 0, **more: object
    ) -> Self:
        """The layer that does what a layer of torch.nn does; see :meth:`distdl.nn.Layer.from_sequential`.

        The layers within have their own options and modes. TypeError if this layer cannot express one of them.
        """
        if cls._unfit(module) is None and not cls._is_uniform(module):
            shared: dict[str, Any] = {name: value for name, value in more.items() if name in _SHARED}
            for name, kind in _STACKS.items():
                stack, make = getattr(module, name), cast(Callable[..., Stack], kind)
                layers = [kind.of.from_sequential(one, P_x, root=root, **shared) for one in stack.layers]
                more.setdefault(f"custom_{name}", make(P_x, torch.nn.ModuleList(layers), len(layers), stack.norm))
        return super().from_sequential(module, P_x, *partitions, root=root, **more)

    @staticmethod
    def _is_uniform(module: torch.nn.Module) -> bool:
        """Whether all layers have the same options, and the norms behind them are as those within."""
        stacks = [(getattr(module, name), kind) for name, kind in _STACKS.items()]
        options = [kind.of.options_of(one) for stack, kind in stacks for one in stack.layers]
        wanted = (options[0]["layer_norm_eps"], options[0]["bias"])
        norms = [stack.norm for stack, _ in stacks]
        return _are_equal(options) and all(
            isinstance(norm, torch.nn.LayerNorm) and (norm.eps, norm.bias is not None) == wanted for norm in norms
        )

    def compute(
        self,
        src: torch.Tensor,
        tgt: torch.Tensor,
        src_mask: torch.Tensor | None = None,
        tgt_mask: torch.Tensor | None = None,
        memory_mask: torch.Tensor | None = None,
        src_key_padding_mask: torch.Tensor | None = None,
        tgt_key_padding_mask: torch.Tensor | None = None,
        memory_key_padding_mask: torch.Tensor | None = None,
        src_is_causal: bool | None = None,
        tgt_is_causal: bool | None = None,
        memory_is_causal: bool = False,
    ) -> torch.Tensor:
        """Encode the source, and decode the target with it."""
        memory = self.encoder(src, src_mask, src_key_padding_mask, src_is_causal)
        masks = (tgt_mask, memory_mask, tgt_key_padding_mask, memory_key_padding_mask)
        result: torch.Tensor = self.decoder(tgt, memory, *masks, tgt_is_causal, memory_is_causal)
        return result
