"""Copies of a model on disjoint ranks, which see different samples and take the same steps."""

from distdl.replicas.data_parallel import DataParallel

__all__ = ["DataParallel"]
