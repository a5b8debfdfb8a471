"""Normalization over blocks: statistics are those of the global tensor."""

__all__: list[str] = []
