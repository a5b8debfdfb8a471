"""Layers without parameters, and with results of zero volume, on ranks outside of their partitions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from operator import attrgetter

import torch
from typing_extensions import Self

from distdl.classic.attributes import OldAttributes
from distdl.nn.base.layer import Layer
from distdl.parameters.transport import zero_of


def nothing_for(x: torch.Tensor) -> torch.Tensor:
    """None of the elements of a tensor, in its graph: (N, 0), or (0,) where the tensor has no batch."""
    return x.flatten()[:0].reshape(x.shape[0], 0) if x.dim() > 1 else x.flatten()[:0]


def _with(value: object, zero: torch.Tensor) -> object:
    """A tensor of floating point in the graph of a zero; anything else as it is."""
    return value + zero if isinstance(value, torch.Tensor) and value.is_floating_point() else value


class OldResults(OldAttributes, Layer):
    """A layer whose results on ranks without a part of them are as from ``zero_volume_tensor``: (0,), or (N, 0)."""

    def result_dims(self, dims: int) -> int:
        """0: results of zero volume stay as they are, and :meth:`forward` gives them their shape."""
        return 0

    def forward(self, *args: object, **kwargs: object) -> object:
        result = super().forward(*args, **kwargs)
        if (getattr(self, "P_y", None) or self.P_x).active or not isinstance(result, torch.Tensor) or not result.dim():
            return result
        return nothing_for(result)


class OldParameters(OldResults):
    """A layer whose parameters are no parameters on ranks outside of the workers that use them.

    There each of them is an attribute of the same name, and without elements, so that the rank takes part in the
    communication of the others.
    """

    _absent: tuple[torch.nn.Parameter, ...] = ()

    def set_aside(self) -> None:
        """Keep the parameters that no worker of this rank uses as attributes alone."""
        for name, layout in self.layouts.items():
            owner, own = self._owner_of(name)
            parameter = dict(owner.named_parameters(recurse=False)).get(own)
            if parameter is not None and not layout.grid.active:
                delattr(owner, own)
                owner.__dict__[own] = parameter
        self._absent = tuple(attrgetter(name)(self) for name in self.set_aside_names())

    def put_back(self) -> None:
        """Undo :meth:`set_aside`."""
        for name in self.set_aside_names():
            owner, own = self._owner_of(name)
            owner.register_parameter(own, owner.__dict__.pop(own))
        self._absent = ()

    def set_aside_names(self) -> list[str]:
        """The names of the parameters that are attributes alone."""
        owners = {name: self._owner_of(name) for name in self.layouts}
        return [name for name, (owner, own) in owners.items() if isinstance(vars(owner).get(own), torch.nn.Parameter)]

    def parameters_set_aside(self) -> tuple[torch.nn.Parameter, ...]:
        """The parameters that are attributes alone."""
        return self._absent

    def forward(self, *args: object, **kwargs: object) -> object:
        if not self._absent or not torch.compiler.is_compiling():
            return super().forward(*args, **kwargs)
        # Compilers see tensors and parameters alone: by these the result depends on parameters of other ranks.
        zero = torch.stack([zero_of(parameter) for parameter in self._absent]).sum()
        args = tuple(_with(value, zero) for value in args)
        return _with(super().forward(*args, **{name: _with(value, zero) for name, value in kwargs.items()}), zero)

    @contextmanager
    def with_all_parameters(self) -> Iterator[None]:
        """Let all parameters be parameters on all ranks, as in the functions that all ranks call together."""
        self.put_back()
        try:
            yield
        finally:
            self.set_aside()

    def _owner_of(self, name: str) -> tuple[torch.nn.Module, str]:
        within, _, own = name.rpartition(".")
        return self.get_submodule(within), own

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Self:
        with self.with_all_parameters():  # the ranks compare their dtypes
            return super()._apply(fn, recurse)
