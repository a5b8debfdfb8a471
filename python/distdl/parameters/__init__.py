"""Parameters and buffers in blocks: their layouts, initial values and transport."""

from distdl.parameters.layout import Layout, parameter_layout

__all__ = ["Layout", "parameter_layout"]
