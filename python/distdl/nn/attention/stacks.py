"""Stacks of transformer layers, which take one vote a call together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, TypeAlias

import torch
import torch.nn.functional as F
from typing_extensions import Self

from distdl.nn.attention.kernels.dropout import LayerWithDropout
from distdl.nn.attention.transformer import DistributedTransformerDecoderLayer, DistributedTransformerEncoderLayer
from distdl.nn.attention.transformer_layer import TransformerLayer, display_name
from distdl.nn.base.layer import Layer
from distdl.nn.base.option_types import Count, must, with_options
from distdl.parameters.initial import Initializer
from distdl.partitions.construction import PartitionLike

__all__ = ["DistributedTransformerDecoder", "DistributedTransformerEncoder"]


def _initializer_from(values: torch.Tensor, name: str) -> Initializer:
    """Initialize from the values of a norm, or as torch.nn does if they are on the meta device."""
    if values.is_meta:
        return torch.nn.init.ones_ if name == "weight" else torch.nn.init.zeros_
    copy = values.detach().clone()
    return lambda tensor: tensor.copy_(copy)


class CompositeLayer(Layer):
    """A layer of layers. It votes for all of them: the layers within vote only when their own structure changed."""

    def voted_parameters(self) -> list[torch.Tensor]:
        declared = self._declared_parameters()
        return [*declared, *(x for x in self.parameters() if all(x is not parameter for parameter in declared))]

    def compared_each_call(self) -> str:
        within = [layer for layer in self.modules() if layer is not self and isinstance(layer, Layer)]
        modes = [x.mode() if isinstance(x, LayerWithDropout) else (x.training, getattr(x, "p", None)) for x in within]
        return f"dropout within {modes}"

    @classmethod
    def from_sequential(
        cls, module: torch.nn.Module, P_x: PartitionLike, *partitions: PartitionLike, root: int = 0, **options: object
    ) -> Self:
        """Make the layer from a layer of torch.nn; see :meth:`distdl.nn.Layer.from_sequential`.

        The layers within keep their options and modes. TypeError if this layer cannot express them.
        """
        layer = super().from_sequential(module, P_x, *partitions, root=root, **options)
        modes = {name: part.training for name, part in module.named_modules()}
        for name, part in layer.named_modules():
            if isinstance(part, Layer) and name in modes:
                part.train(modes[name])
        return layer


def have_same_options(options: Sequence[Mapping[str, object]]) -> bool:
    """Whether all layers have the same options."""
    return all(other == options[0] for other in options)


_is_norm = must(
    lambda value: isinstance(value, Layer | torch.nn.LayerNorm),
    "be a layer of distdl or a torch.nn.LayerNorm",
    TypeError,
)
FinalNorm: TypeAlias = Annotated[torch.nn.Module, _is_norm] | None


class Stack(CompositeLayer):
    """The common part of encoders and decoders: copies of a layer, and a norm after them."""

    layer_class: ClassVar[type[TransformerLayer]]
    option: ClassVar[str]
    num_layers: Count

    def check_options(self) -> None:
        name = type(self).__name__
        layer, norm = self.passed[self.option], self.passed["norm"]
        each = layer if isinstance(layer, torch.nn.ModuleList) and len(layer) else [layer]
        if not all(isinstance(part, (Layer, *self.layer_class.sequential_classes())) for part in each):
            kind = self.layer_class.__name__
            raise TypeError(f"{name}: {self.option}={layer!r}; it has to be a {kind}, or torch.nn's")
        if isinstance(layer, torch.nn.ModuleList) and len(layer) != self.num_layers:
            raise ValueError(f"{name}: num_layers={self.num_layers}; {self.option} has {len(layer)} layers")
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
                    initialize=_initializer_from(values, name),
                    dtype=values.dtype,
                    device=values.device if values.device.type not in ("cpu", "meta") else None,
                )

    def options_to_compare(self) -> dict[str, object]:
        return {name: display_name(type(self.passed[name])) for name in (self.option, "norm")}

    def prepare(self) -> None:
        """Append copies of the option's layer with its parameters, or the layers of its list."""
        option, make = self.passed[self.option], self.layer_class.from_sequential
        if isinstance(option, torch.nn.ModuleList):
            with torch.random.fork_rng(devices=[]):
                for layer in option:
                    self.layers.append(layer if isinstance(layer, Layer) else make(layer, self.P_x))
            return
        prototype = option if isinstance(option, Layer) else make(option, self.P_x)
        partitions = [getattr(prototype, name) for name in prototype.partitions]
        for _ in range(self.num_layers):
            with torch.random.fork_rng(devices=[]):  # copies draw no numbers, as in torch.nn
                copy = type(prototype)(*partitions, **prototype.passed)  # type: ignore[arg-type]
            copy.load_state_dict(prototype.state_dict())
            for parameter, other in zip(copy.parameters(), prototype.parameters(), strict=True):
                parameter.requires_grad_(other.requires_grad)
            self.layers.append(copy.train(prototype.training))

    def apply_norm(self, x: torch.Tensor) -> torch.Tensor:
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
        """Without the option with the layer: the layers within are shown."""
        return f"num_layers={self.num_layers}, P_x={self.P_x}"

    @classmethod
    def options_of(cls, module: torch.nn.Module) -> dict[str, object]:
        layers = module.layers
        are_copies = have_same_options([cls.layer_class.options_of(layer) for layer in layers])
        return {cls.option: layers[0] if are_copies else layers, "num_layers": len(layers), "norm": module.norm}

    @classmethod
    def _unfit(cls, module: object) -> TypeError | None:
        problem = super()._unfit(module)
        if problem is None:
            assert isinstance(module, torch.nn.Module)
            for i, layer in enumerate(module.layers):
                problem = problem or cls._unfit_within(layer, i)
        return problem

    @classmethod
    def _unfit_within(cls, layer: torch.nn.Module, i: int) -> TypeError | None:
        problem = cls.layer_class._unfit(layer)
        return None if problem is None else TypeError(f"{cls.__name__}: layers[{i}] does not fit: {problem}")


@with_options
class DistributedTransformerEncoder(Stack):
    """A stack of encoder layers: ``torch.nn.TransformerEncoder`` in blocks.

    Args:
        P_x: the partition of the input.
        encoder_layer: a :class:`distdl.nn.DistributedTransformerEncoderLayer` on P_x or a
            ``torch.nn.TransformerEncoderLayer``, which is copied; or a ``torch.nn.ModuleList`` of num_layers such
            layers with any options. Layers of distdl in a list are used without a copy.
        num_layers: the number of layers.
        norm: a layer after them: of distdl, or a ``torch.nn.LayerNorm`` over the features.
        enable_nested_tensor, mask_check: of torch.nn's fast path; ignored. Padded tokens have results, as in torch.nn
            in training.

    Shape:
        As in the layers, each of which receives the masks.

    Raises:
        TypeError, ValueError: on all ranks, if an option is invalid.

    One vote a call. Collective: constructing over P_x's parent communicator, calling over P_x.
    """

    encoder_layer: torch.nn.Module
    num_layers: Count
    norm: FinalNorm = None
    enable_nested_tensor: bool = True
    mask_check: bool = True
    tensors: ClassVar[tuple[str, ...]] = ("src", "mask", "src_key_padding_mask")
    optional: ClassVar[tuple[str, ...]] = tensors[1:]
    layer_class: ClassVar[type[TransformerLayer]] = DistributedTransformerEncoderLayer
    option: ClassVar[str] = "encoder_layer"

    def compute(
        self,
        src: torch.Tensor,
        mask: torch.Tensor | None = None,
        src_key_padding_mask: torch.Tensor | None = None,
        is_causal: bool | None = None,
    ) -> torch.Tensor:
        for layer in self.layers:
            src = layer(src, mask, src_key_padding_mask, bool(is_causal))
        return self.apply_norm(src)


@with_options
class DistributedTransformerDecoder(Stack):
    """A stack of decoder layers: ``torch.nn.TransformerDecoder`` in blocks.

    Args:
        P_x: the partition of the target, and of the memory.
        decoder_layer: a :class:`distdl.nn.DistributedTransformerDecoderLayer` on P_x or a
            ``torch.nn.TransformerDecoderLayer``, which is copied; or a ``torch.nn.ModuleList`` of num_layers such
            layers with any options. Layers of distdl in a list are used without a copy.
        num_layers: the number of layers.
        norm: a layer after them: of distdl, or a ``torch.nn.LayerNorm`` over the features.

    Shape:
        As in the layers, each of which receives the masks.

    Raises:
        TypeError, ValueError: on all ranks, if an option is invalid.

    One vote a call. Collective: constructing over P_x's parent communicator, calling over P_x.
    """

    decoder_layer: torch.nn.Module
    num_layers: Count
    norm: FinalNorm = None
    tensors: ClassVar[tuple[str, ...]] = DistributedTransformerDecoderLayer.tensors
    optional: ClassVar[tuple[str, ...]] = DistributedTransformerDecoderLayer.optional
    layer_class: ClassVar[type[TransformerLayer]] = DistributedTransformerDecoderLayer
    option: ClassVar[str] = "decoder_layer"

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
        masks = (tgt_mask, memory_mask, tgt_key_padding_mask, memory_key_padding_mask)
        for layer in self.layers:
            tgt = layer(tgt, memory, *masks, bool(tgt_is_causal), bool(memory_is_causal))
        return self.apply_norm(tgt)
