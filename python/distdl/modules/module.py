"""The base class of all modules over partitions: set-up on first use, and parameters in blocks."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from operator import attrgetter

import torch

from distdl.modules.hooks import HookedModule
from distdl.parameters.initial import Initializer, fill
from distdl.parameters.layout import Layout, current_kind
from distdl.partitions.construction import PartitionLike, grid_of


class Module(HookedModule):
    """A module that sets itself up on first use, and again when the structure of its input changes.

    A derived class overrides the hooks :meth:`_distdl_module_setup`, :meth:`_distdl_module_teardown` and, if necessary,
    :meth:`_distdl_input_changed`. A constructor that calls :meth:`_distdl_agree_among` lets the ranks vote on a change
    of the input, in one small reduction a call; otherwise each rank looks at its own tensor only.
    :class:`distdl.nn.Layer` does more for derived classes.

    Otherwise like ``torch.nn.Module``. All ranks of a module call it together.

    Attributes:
        layouts: the layouts of the parameters and buffers in blocks, by name.
    """

    def __init__(self) -> None:
        super().__init__()
        alive.add(self)
        self.layouts: dict[str, Layout] = {}
        self._initializers: dict[str, Initializer] = {}

    def __setstate__(self, state: dict[str, object]) -> None:
        super().__setstate__(state)
        alive.add(self)

    def declare_parameter(
        self,
        name: str,
        P: PartitionLike,
        shape: Sequence[int],
        axes: Sequence[int | None],
        *,
        first_of: Sequence[int] = (),
        initialize: Initializer | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        """Register a parameter in blocks on the workers of a partition.

        Initializers, optimizers, ``state_dict()``, :func:`distdl.sequential_state_dict` and
        :func:`distdl.load_sequential` know it. :func:`distdl.parameter_layout` places its blocks.

        Args:
            name: of the attribute. On ranks without a block, the attribute has no rows. A name with dots is of a
                parameter of a module within, which is made if necessary.
            P: the partition of the workers that use it.
            shape: of the whole parameter.
            axes: for each of its dimensions the axis of P that splits it into balanced blocks, or None.
            first_of: axes of P along which only the workers at place 0 use it.
            initialize: fills the whole parameter in place, as the functions of ``torch.nn.init`` do; called by
                :meth:`reset_parameters`.
            dtype, device: as in ``torch.empty``.

        Every rank of the module must call it, with the same arguments.
        """
        layout = Layout(grid_of(P), tuple(shape), tuple(axes), tuple(first_of), current_kind())
        parameter = torch.nn.Parameter(torch.empty(layout.local_shape, dtype=dtype, device=device))
        *within, leaf = name.split(".")
        owner: torch.nn.Module = self
        for part in within:
            if part not in dict(owner.named_children()):
                owner.register_module(part, torch.nn.Module())
            owner = owner.get_submodule(part)
        owner.register_parameter(leaf, parameter)
        self._declare(name, layout, initialize)

    def declare_buffer(
        self,
        name: str,
        P: PartitionLike,
        shape: Sequence[int],
        axes: Sequence[int | None],
        *,
        initialize: Initializer | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        persistent: bool = True,
    ) -> None:
        """Register a buffer of which each worker has the block that it uses; otherwise as :meth:`declare_parameter`."""
        layout = Layout(grid_of(P), tuple(shape), tuple(axes), kind="replicated")
        self.register_buffer(name, torch.empty(layout.local_shape, dtype=dtype, device=device), persistent)
        self._declare(name, layout, initialize)

    def _declare(self, name: str, layout: Layout, initialize: Initializer | None) -> None:
        self.layouts[name] = layout
        if initialize is not None:
            self._initializers[name] = initialize

    def reset_parameters(self) -> None:
        """Initialize the declared parameters and buffers; every rank must call it, with the same seed."""
        for name, tensor in self._declared():
            if name in self._initializers:
                fill(tensor, self.layouts[name], self._initializers[name])

    def _declared(self) -> Iterator[tuple[str, torch.Tensor]]:
        return ((name, attrgetter(name)(self)) for name in self.layouts)


alive: weakref.WeakSet[Module] = weakref.WeakSet()
"""All modules over partitions of this process, also copies and unpickled modules."""


def refuse_distributed(what: str, module: torch.nn.Module) -> None:
    """Raise TypeError if a module of torch is or holds a layer over partitions.

    Args:
        what: the function or class that takes the module, for messages.
    """
    for part in module.modules():
        if isinstance(part, Module):
            kind, layer = type(module).__name__, type(part).__name__
            raise TypeError(f"{what}: {kind} holds a {layer}, a layer over partitions; {what} is for layers of torch")
