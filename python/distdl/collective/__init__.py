"""Collective work besides moving tensors: describe partitions, compare calls, construct."""
