"""Softmax and its relatives along a dimension that may be split."""

__all__: list[str] = []
