"""Attention over blocks, and the transformer layers made of it."""

__all__: list[str] = []
