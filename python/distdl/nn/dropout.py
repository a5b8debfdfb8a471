"""Dropout whose masks belong to the global tensor."""

__all__: list[str] = []
