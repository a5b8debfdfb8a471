"""Layers of torch.nn that work on each block by itself."""

__all__: list[str] = []
