"""States of layers whose parameters have other names than in torch.nn: in blocks, or whole on rank 0."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from distdl.classic.attributes import PartitionsOfParameters
from distdl.classic.nothing import OldParameters
from distdl.modules.sequential_state import load_sequential, sequential_state_dict
from distdl.partitions.boxes import as_slices
from distdl.partitions.structure import zero_volume_tensor

ALIASES = {
    "weight": ("weight", "sublinear.weight", "conv_layer.weight", "gamma"),
    "bias": ("bias", "sublinear.bias", "conv_layer.bias", "beta"),
}
"""The keys under which a file may have a parameter, by its name in torch.nn."""


class OldStates(OldParameters, PartitionsOfParameters):
    """A layer whose state a file may have under other names, or in whole tensors.

    A file with the state of a rank may call a parameter by any of the names in ``ALIASES``. A value for a parameter
    that this rank has nothing of is ignored, and of a whole tensor this rank takes its part.

    Attributes:
        collect_state: whether ``state_dict()`` has whole tensors on rank 0, and ``load_state_dict()`` takes them
            from there. Both are collective then.
    """

    collect_state: bool = False

    def state_dict(self, *args: object, **kwargs: object) -> dict[str, torch.Tensor]:
        """The state of this rank; with ``collect_state`` whole tensors on rank 0, collective over the layer's ranks."""
        state: dict[str, torch.Tensor] = super().state_dict(*args, **kwargs)
        prefix = kwargs.get("prefix", args[1] if len(args) > 1 else "")
        return self.gather_state_dict(self, state, str(prefix)) if self.collect_state else state

    def gather_state_dict(
        self, module: torch.nn.Module, destination: dict[str, torch.Tensor], prefix: str = "", *options: object
    ) -> dict[str, torch.Tensor]:
        """Put whole tensors into a state on rank 0, and zero-volume ones on all others. Collective."""
        with self.with_all_parameters(), in_blocks(self):
            wholes, names = sequential_state_dict(self), list(self._own())
        for name in names:
            whole = wholes.get(name)
            destination[prefix + name] = zero_volume_tensor() if whole is None else self.in_order(name, whole, True)
        return destination

    def scatter_state_dict(
        self, module: torch.nn.Module, destination: dict[str, torch.Tensor], prefix: str = "", *options: object
    ) -> dict[str, torch.Tensor]:
        """Take whole tensors out of a state on rank 0, and put this rank's parts in place of them. Collective."""
        with self.with_all_parameters(), in_blocks(self):
            names = self._own()
            wholes = {name: destination[prefix + name] for name in names if prefix + name in destination}
            load_sequential(self, {name: self.in_order(name, tensor, False) for name, tensor in wholes.items()})
            destination.update({prefix + name: tensor.detach().clone() for name, tensor in self._own().items()})
        return destination

    def in_order(self, name: str, whole: torch.Tensor, gathered: bool) -> torch.Tensor:
        """A whole parameter in the order of the sequential layer, or in that of this layer's blocks."""
        return whole

    def _own(self) -> dict[str, torch.Tensor]:
        """Parameters and buffers by their names in a state."""
        kept = {name: tensor for name, tensor in self.named_buffers() if name not in self._non_persistent_buffers_set}
        return {**dict(self.named_parameters(remove_duplicate=False)), **kept}

    def _load_from_state_dict(self, state_dict: dict[str, torch.Tensor], prefix: str, *args: object) -> None:
        absent = self.set_aside_names()
        with self.with_all_parameters():
            self._take_from(state_dict, prefix)
            super()._load_from_state_dict(state_dict, prefix, *args)
        for name in absent:  # which the layers within do not know here
            state_dict.pop(prefix + name, None)

    def _take_from(self, state_dict: dict[str, torch.Tensor], prefix: str) -> None:
        """Put what this rank has of the tensors of a state in place of them, under this layer's names."""
        in_torch = {old: name for name, old in self.old_names.items()}
        for name in self._own():
            others = [key for key in ALIASES.get(in_torch.get(name, name), ()) if prefix + key in state_dict]
            if prefix + name not in state_dict and others:
                state_dict[prefix + name] = state_dict.pop(prefix + others[0])
        if self.collect_state:
            self.scatter_state_dict(self, state_dict, prefix)
            self.put_back()  # for the caller, which sets them aside
        for name, own in self._own().items():
            if own.numel() == 0:
                state_dict[prefix + name] = own
            elif prefix + name in state_dict:
                state_dict[prefix + name] = self._part(name, own, state_dict[prefix + name])

    def _part(self, name: str, own: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
        """The part of a tensor in a file that this rank has."""
        layout = self.layouts.get(name)
        if tensor.shape == own.shape or layout is None:
            return tensor
        if tuple(tensor.shape) == layout.shape and layout.intervals is not None:
            return self.in_order(name, tensor, False)[as_slices(layout.intervals)]
        return tensor.reshape(own.shape) if tensor.numel() == own.numel() else tensor


@contextmanager
def in_blocks(model: torch.nn.Module) -> Iterator[None]:
    """Let the states of all layers of a model be those of their blocks, also of layers with ``collect_state``."""
    collecting = [layer for layer in model.modules() if isinstance(layer, OldStates) and layer.collect_state]
    for layer in collecting:
        layer.collect_state = False
    try:
        yield
    finally:
        for layer in collecting:
            layer.collect_state = True
