"""Attention, and the layers of transformers."""

from distdl.nn.attention.dot_product import DistributedScaledDotProductAttention

__all__ = ["DistributedScaledDotProductAttention"]
