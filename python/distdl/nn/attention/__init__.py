"""Attention, and the layers of transformers."""

from distdl.nn.attention.dot_product import DistributedScaledDotProductAttention
from distdl.nn.attention.encoder_decoder import DistributedTransformer
from distdl.nn.attention.multihead import DistributedMultiheadAttention
from distdl.nn.attention.stacks import DistributedTransformerDecoder, DistributedTransformerEncoder
from distdl.nn.attention.transformer import DistributedTransformerDecoderLayer, DistributedTransformerEncoderLayer

__all__ = [
    "DistributedMultiheadAttention",
    "DistributedScaledDotProductAttention",
    "DistributedTransformer",
    "DistributedTransformerDecoder",
    "DistributedTransformerDecoderLayer",
    "DistributedTransformerEncoder",
    "DistributedTransformerEncoderLayer",
]
