"""The whole transformer: an encoder and a decoder, which take one vote a call together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY
from typing import Annotated, Any, ClassVar, TypeAlias, cast

import torch
import torch.nn.functional as F
from typing_extensions import Self

from distdl.nn.attention.stacks import (
    CompositeLayer,
    DistributedTransformerDecoder,
    DistributedTransformerEncoder,
    Stack,
    have_same_options,
)
from distdl.nn.attention.transformer_layer import Activation, display_name
from distdl.nn.base.layer import Layer
from distdl.nn.base.option_types import Device, Dtype, HasBias, must, option, with_options
from distdl.parameters.initial import fill
from distdl.partitions.construction import PartitionLike

__all__ = ["DistributedTransformer"]

_STACKS: Mapping[str, type[Stack]] = {
    "encoder": DistributedTransformerEncoder,
    "decoder": DistributedTransformerDecoder,
}
_SHARED = ("d_model", "nhead", "dim_feedforward", "dropout", "activation", "layer_norm_eps", "batch_first",
           "norm_first", "bias", "device", "dtype", "method")  # fmt: skip


_is_layer = must(lambda value: isinstance(value, Layer), "be a layer of distdl, or None", TypeError)
CustomStack: TypeAlias = Annotated[torch.nn.Module, _is_layer] | None


@with_options
class DistributedTransformer(CompositeLayer):
    """An encoder and a decoder: ``torch.nn.Transformer`` in blocks.

    Args:
        P_x: the partition of source and target: ``[batch, sequence, 1]`` with batch_first, ``[sequence, batch, 1]``
            without, or ``[sequence, 1]`` for unbatched tensors.
        d_model, nhead, num_encoder_layers, num_decoder_layers, dim_feedforward, dropout, activation: as in
            ``torch.nn.Transformer``.
        custom_encoder, custom_decoder: layers of distdl.
        layer_norm_eps, batch_first, norm_first, bias, device, dtype: as in ``torch.nn.Transformer``.
        method: as in :class:`distdl.nn.DistributedScaledDotProductAttention`.

    Shape:
        src, tgt and the result, of tgt's shape, in blocks, which may differ along the sequence. Zero volume on all
        other ranks. Masks as in :class:`distdl.nn.DistributedMultiheadAttention`.

    Attributes:
        encoder, decoder: the parameters, with the names of torch.nn.

    Raises:
        TypeError, ValueError: on all ranks, if options or tensors do not match.

    One vote a call. Collective: constructing over P_x's parent communicator, calling over P_x.
    """

    d_model: int = 512
    nhead: int = 8
    num_encoder_layers: int = 6
    num_decoder_layers: int = 6
    dim_feedforward: int = 2048
    dropout: float = 0.1
    activation: str | Activation = F.relu
    custom_encoder: CustomStack = None
    custom_decoder: CustomStack = None
    layer_norm_eps: float = 1e-5
    batch_first: bool = False
    norm_first: bool = False
    bias: HasBias = option(default=True)
    device: Device = None
    dtype: Dtype = None
    _: KW_ONLY
    method: str | None = None
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

    def options_to_compare(self) -> dict[str, object]:
        custom = {name: display_name(type(self.passed[name])) for name in ("custom_encoder", "custom_decoder")}
        return {"activation": display_name(self.activation), **custom}

    def prepare(self) -> None:
        self.encoder = self._part(DistributedTransformerEncoder, self.custom_encoder, self.num_encoder_layers)
        self.decoder = self._part(DistributedTransformerDecoder, self.custom_decoder, self.num_decoder_layers)
        self._reset()

    def _part(self, kind: type[Stack], custom: torch.nn.Module | None, layers: int) -> torch.nn.Module:
        if custom is not None:
            return custom
        layer = kind.layer_class(self.P_x, **{name: self.passed[name] for name in _SHARED})  # type: ignore[arg-type]
        options: dict[str, object] = {name: self.passed[name] for name in ("device", "dtype")}
        norm = torch.nn.LayerNorm(self.d_model, self.layer_norm_eps, bias=bool(self.passed["bias"]), **options)
        return kind(self.P_x, layer, layers, norm)  # type: ignore[call-arg, arg-type]

    def _reset(self) -> None:
        for prefix, module in self.named_modules():
            layouts = getattr(module, "layouts", {}) if prefix else {}
            names = [name for name, _ in module.named_parameters() if name in layouts]
            for name in names:
                if len(layouts[name].shape) > 1:
                    fill(module.get_parameter(name), layouts[name], torch.nn.init.xavier_uniform_)

    @classmethod
    def options_of(cls, module: torch.nn.Module) -> dict[str, object]:
        options: dict[str, object] = {}
        for name, kind in _STACKS.items():
            stack = getattr(module, name)
            options |= kind.layer_class.options_of(stack.layers[0])
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
        cls, module: torch.nn.Module, P_x: PartitionLike, *partitions: PartitionLike, root: int = 0, **options: object
    ) -> Self:
        """Make the layer from a layer of torch.nn; see :meth:`distdl.nn.Layer.from_sequential`.

        The layers within keep their options and modes. TypeError if this layer cannot express them.
        """
        if cls._unfit(module) is None and not cls._is_uniform(module):
            shared: dict[str, Any] = {name: value for name, value in options.items() if name in _SHARED}
            for name, kind in _STACKS.items():
                stack, make = getattr(module, name), cast(Callable[..., Stack], kind)
                layers = [kind.layer_class.from_sequential(layer, P_x, root=root, **shared) for layer in stack.layers]
                options.setdefault(f"custom_{name}", make(P_x, torch.nn.ModuleList(layers), len(layers), stack.norm))
        return super().from_sequential(module, P_x, *partitions, root=root, **options)

    @staticmethod
    def _is_uniform(module: torch.nn.Module) -> bool:
        """Whether all layers have the same options, and the final norms match the norms within."""
        stacks = [(getattr(module, name), kind) for name, kind in _STACKS.items()]
        options = [kind.layer_class.options_of(layer) for stack, kind in stacks for layer in stack.layers]
        wanted = (options[0]["layer_norm_eps"], options[0]["bias"])
        norms = [stack.norm for stack, _ in stacks]
        return have_same_options(options) and all(
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
        memory = self.encoder(src, src_mask, src_key_padding_mask, src_is_causal)
        masks = (tgt_mask, memory_mask, tgt_key_padding_mask, memory_key_padding_mask)
        result: torch.Tensor = self.decoder(tgt, memory, *masks, tgt_is_causal, memory_is_causal)
        return result
