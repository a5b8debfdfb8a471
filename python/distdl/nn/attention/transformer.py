"""The layers of transformers over a split batch and a split sequence."""

from __future__ import annotations

from typing import ClassVar

import torch

from distdl.nn.attention.tokens import check_token_features
from distdl.nn.attention.transformer_layer import TransformerLayer
from distdl.nn.base.option_types import with_options

__all__ = ["DistributedTransformerDecoderLayer", "DistributedTransformerEncoderLayer"]


@with_options
class DistributedTransformerEncoderLayer(TransformerLayer):
    """Self-attention and a feedforward network: ``torch.nn.TransformerEncoderLayer`` in blocks.

    Args:
        P_x: the partition of the input: ``[batch, sequence, 1]`` with batch_first, ``[sequence, batch, 1]`` without, or
            ``[sequence, 1]`` for unbatched tensors.
        d_model, nhead, dim_feedforward, dropout, activation, layer_norm_eps, batch_first, norm_first: as in
            ``torch.nn.TransformerEncoderLayer``.
        bias, device, dtype: likewise.
        method: as in :class:`distdl.nn.DistributedScaledDotProductAttention`.

    Shape:
        src and the result in blocks; zero volume on all other ranks. ``src_mask`` and ``src_key_padding_mask``: as
        attn_mask and key_padding_mask in :class:`distdl.nn.DistributedMultiheadAttention`. ``is_causal=True`` needs no
        src_mask.

    Attributes:
        self_attn, linear1, linear2, norm1, norm2: the parameters, with the names of torch.nn.

    Raises:
        ValueError: on all ranks, if options or tensors do not match, or P_x splits features.

    One vote a call. Collective: constructing over P_x's parent communicator, calling over P_x.
    """

    tensors: ClassVar[tuple[str, ...]] = ("src", "src_mask", "src_key_padding_mask")
    optional: ClassVar[tuple[str, ...]] = ("src_mask", "src_key_padding_mask")
    attentions: ClassVar[tuple[str, ...]] = ("self_attn",)

    def set_up(self) -> None:
        check_token_features(self, "src", self.structure(self.grid), self.d_model, self.autocast)
        src = self.blocks(self.grid)
        self.tokens = src[:-1]
        padding, mask = self.structure(self.grid, 2), self.structure(self.grid, 1)
        (is_causal,) = self.others or (False,)
        self._projected[0].set_up(src, src, padding, mask, bool(is_causal), names=("src_key_padding_mask", "src_mask"))

    def compute(
        self,
        src: torch.Tensor,
        src_mask: torch.Tensor | None = None,
        src_key_padding_mask: torch.Tensor | None = None,
        is_causal: bool = False,
    ) -> torch.Tensor:
        if not self.grid.active:
            return self.without_part(src)
        parameters = self.parameters_by_name()
        x = self.add_residual(
            1, src, parameters, lambda x: self.attention(0, x, x, parameters, src_mask, src_key_padding_mask)
        )
        return self.add_residual(2, x, parameters, lambda x: self.feed_forward(x, parameters))


@with_options
class DistributedTransformerDecoderLayer(TransformerLayer):
    """Self-attention, attention to a memory, and a feedforward network: ``torch.nn.TransformerDecoderLayer`` in blocks.

    Args:
        P_x: the partition of the target, and of the memory: ``[batch, sequence, 1]`` with batch_first, ``[sequence,
            batch, 1]`` without, or ``[sequence, 1]`` for unbatched tensors.
        d_model, nhead, dim_feedforward, dropout, activation, layer_norm_eps, batch_first, norm_first: as in
            ``torch.nn.TransformerDecoderLayer``.
        bias, device, dtype: likewise.
        method: as in :class:`distdl.nn.DistributedScaledDotProductAttention`.

    Shape:
        tgt, memory and the result in blocks; tgt and memory may differ along the sequence. Zero volume on all other
        ranks. Masks as in :class:`distdl.nn.DistributedMultiheadAttention`. ``tgt_is_causal=True`` needs no tgt_mask.

    Attributes:
        self_attn, multihead_attn, linear1, linear2, norm1, norm2, norm3: the parameters, with the names of torch.nn.

    Raises:
        ValueError: on all ranks, if options or tensors do not match, or P_x splits features.

    One vote a call. Collective: constructing over P_x's parent communicator, calling over P_x.
    """

    tensors: ClassVar[tuple[str, ...]] = (
        "tgt",
        "memory",
        "tgt_mask",
        "memory_mask",
        "tgt_key_padding_mask",
        "memory_key_padding_mask",
    )
    optional: ClassVar[tuple[str, ...]] = tensors[2:]
    attentions: ClassVar[tuple[str, ...]] = ("self_attn", "multihead_attn")

    def set_up(self) -> None:
        for i, name in enumerate(("tgt", "memory")):
            check_token_features(self, name, self.structure(self.grid, i), self.d_model, self.autocast)
        tgt, memory = self.blocks(self.grid), self.blocks(self.grid, 1)
        batch = 0 if self.batch_first else 1
        if self.grid.dim == 3 and tgt[batch] != memory[batch]:
            raise ValueError(
                f"{type(self).__name__}: tgt is in blocks of {tgt} and memory of {memory} by dimension; they must have "
                "the same batch"
            )
        self.tokens = tgt[:-1]
        causal = (*self.others, False, False)[:2]
        for i, (which, keys) in enumerate((("tgt", tgt), ("memory", memory))):
            mask, padding = self.structure(self.grid, 2 + i), self.structure(self.grid, 4 + i)
            names = (f"{which}_key_padding_mask", f"{which}_mask")
            self._projected[i].set_up(tgt, keys, padding, mask, bool(causal[i]), names=names)

    def compute(
        self,
        tgt: torch.Tensor,
        memory: torch.Tensor,
        tgt_mask: torch.Tensor | None = None,
        memory_mask: torch.Tensor | None = None,
        tgt_key_padding_mask: torch.Tensor | None = None,
        memory_key_padding_mask: torch.Tensor | None = None,
        tgt_is_causal: bool = False,
        memory_is_causal: bool = False,
    ) -> torch.Tensor:
        if not self.grid.active:
            return self.without_part(tgt)
        parameters = self.parameters_by_name()
        x = self.add_residual(
            1, tgt, parameters, lambda x: self.attention(0, x, x, parameters, tgt_mask, tgt_key_padding_mask)
        )
        x = self.add_residual(
            2, x, parameters, lambda x: self.attention(1, x, memory, parameters, memory_mask, memory_key_padding_mask)
        )
        return self.add_residual(3, x, parameters, lambda x: self.feed_forward(x, parameters))
