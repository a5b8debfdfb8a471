"""Data in blocks: reading this rank's part of an array, and batches of samples."""

from distdl.data.blocks import read_block
from distdl.data.loader import Loader, loader

__all__ = ["Loader", "loader", "read_block"]
