"""Checkpoints: one safetensors file of whole tensors, written and read in blocks by all ranks."""

from distdl.checkpoint.loading import load
from distdl.checkpoint.saving import Saving, save

__all__ = ["Saving", "load", "save"]
