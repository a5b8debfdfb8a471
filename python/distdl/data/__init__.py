"""Data in blocks: reading and writing this rank's part of an array, and batches of samples."""

from distdl.data.batches import current_epoch
from distdl.data.blocks import read_block
from distdl.data.loader import Loader, loader
from distdl.data.patches import Patches
from distdl.data.writing import write_block

__all__ = ["Loader", "Patches", "current_epoch", "loader", "read_block", "write_block"]
