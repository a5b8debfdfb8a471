"""Embeddings whose table may be split."""

__all__: list[str] = []
