"""Layers that move elements and compute nothing."""

__all__: list[str] = []
