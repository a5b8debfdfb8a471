"""Losses of partitioned tensors: one number, on every rank."""

from distdl.nn.loss.cross_entropy import DistributedCrossEntropyLoss
from distdl.nn.loss.mse import DistributedMSELoss

__all__ = ["DistributedCrossEntropyLoss", "DistributedMSELoss"]
