"""Activations that own parameters, draw random numbers, or look across a dimension."""

__all__: list[str] = []
