"""Partitions of ranks, and everything that ranks do together besides moving tensors."""
