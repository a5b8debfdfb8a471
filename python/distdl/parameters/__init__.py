"""Parameters and buffers in blocks: where they live, their first values, how they travel, and the whole of them."""

from distdl.parameters.layout import Layout, parameter_layout

__all__ = ["Layout", "parameter_layout"]
