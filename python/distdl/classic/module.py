"""The base class of layers: ours. In classic mode it has ``_distdl_backend``, which ``activation`` gives it."""

from distdl.modules.module import Module

__all__ = ["Module"]
