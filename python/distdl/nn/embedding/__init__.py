"""Embeddings, and bags of them, over tables split along their rows and columns."""

from distdl.nn.embedding.bag import DistributedEmbeddingBag
from distdl.nn.embedding.rows import DistributedEmbedding

__all__ = ["DistributedEmbedding", "DistributedEmbeddingBag"]
