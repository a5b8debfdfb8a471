"""Attention, and the layers of transformers."""

from distdl.nn.attention.dot_product import DistributedScaledDotProductAttention
from distdl.nn.attention.multihead import DistributedMultiheadAttention

__all__ = ["DistributedMultiheadAttention", "DistributedScaledDotProductAttention"]
