"""Distances and similarities along a dimension that may be split."""

__all__: list[str] = []
