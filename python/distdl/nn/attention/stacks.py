"""Stacks of transformer layers, which agree on a call together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Self

import torch
import torch.nn.functional as F

from distdl.collective.construction import PartitionLike
from distdl.nn.attention.dropped import Dropping
from distdl.nn.attention.transformer import DistributedTransformerDecoderLayer, DistributedTransformerEncoderLayer
from distdl.nn.attention.transformer_layer import TransformerLayer, name_of
from distdl.nn.layer import Layer
from distdl.nn.options import integer
from distdl.parameters.initial import Initializer

__all__ = ["DistributedTransformerDecoder", "DistributedTransformerEncoder"]


def _like(values: torch.Tensor, name: str) -> Initializer:
    """The first values of a norm: its own, or those of torch.nn if they are on the meta device."""
    if values.is_meta:
        return torch.nn.init.ones_ if name == "weight" else torch.nn.init.zeros_
    own = values.detach().clone()
    return lambda tensor: tensor.copy_(own)


class Around(Layer):
    """A layer of layers. It votes for all of them: the layers within vote where their own structure changed."""

    def _agreed_parameters(self) -> list[torch.Tensor]:
        """The parameters of this layer and of the layers within, which follow what this layer agreed on."""
        own = self._declared_parameters()
        return [*own, *(one for one in self.parameters() if all(one is not other for other in own))]

    def compared_each_call(self) -> str:
        """The dropout of the layers within, and their modes."""
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


def are_equal(options: Sequence[Mapping[str, object]]) -> bool:
    """Whether all layers have the same options."""
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
        given = layers[0] if are_equal([cls.of.options_of(one) for one in layers]) else layers
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
