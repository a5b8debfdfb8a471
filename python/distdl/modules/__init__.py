"""Modules with tensors in blocks: parameters, layouts, state, and their graph."""
