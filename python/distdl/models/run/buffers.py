"""Keep the buffers of a model, and parameters that it writes into, the same on all of its workers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch

from distdl.models.operations.placement import Blocks
from distdl.models.plan.planning import PlanStep
from distdl.models.plan.redistribution import ReadRegions, Redistribution
from distdl.nn.base.compile.calls import place_of
from distdl.parameters.layout import Layout
from distdl.partitions.boxes import as_slices
from distdl.partitions.grid import Grid


class Buffers(Mapping[str, torch.Tensor]):
    """A model's buffers by name, looked up at each access: compilers and users may replace them."""

    def __init__(self, model: torch.nn.Module) -> None:
        named = model.named_buffers(remove_duplicate=False)
        self._places = {name: place_of(model, "buffers", name) for name, _ in named}

    def __getitem__(self, name: str) -> torch.Tensor:
        held, leaf = self._places[name]
        return held[leaf]

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


class BufferBroadcast:
    """Broadcasts buffers that a layer has written to the workers of the model that do not compute the layer.

    Args:
        step: the step of the layer.
        buffers: of the model, by name.
        like: a grid of the workers of the model. Constructing and calling are collective over them.
    """

    def __init__(self, step: PlanStep, buffers: Mapping[str, torch.Tensor], like: Grid) -> None:
        assert isinstance(step.workers, Blocks)
        source = step.workers.ranks[0]
        self._is_source, self._receives = like.me == source, like.active
        self._buffers = buffers
        self._redistributions: dict[str, Redistribution] = {}
        for name in names_written(step, buffers):
            shape = buffers[name].shape
            place = Blocks((source,), tuple((n,) for n in shape))
            self._redistributions[name] = Redistribution(
                "distribute", place, ReadRegions.whole(like.ranks), shape, like
            )

    @staticmethod
    def is_needed(step: PlanStep, buffers: Mapping[str, torch.Tensor], like: Grid) -> bool:
        """Whether a layer writes buffers that workers without the layer have as well."""
        if not isinstance(step.workers, Blocks) or set(step.workers.ranks) == set(like.ranks):
            return False
        return bool(names_written(step, buffers))

    def __call__(self) -> list[torch.Tensor]:
        """Update the buffers after the layer. Returns no results."""
        with torch.no_grad():
            for name, redistribution in self._redistributions.items():
                buffer = self._buffers[name]
                values = redistribution(buffer if self._is_source else buffer.new_zeros(0))
                if self._receives and not self._is_source:
                    buffer.copy_(values)
        return []


def names_written(step: PlanStep, buffers: Mapping[str, torch.Tensor]) -> list[str]:
    """The buffers that a layer writes."""
    names = [name for name in step.node.buffers.values() if name in buffers]
    return names if names and step.node.module.training else []


class WriteBack:
    """Writes into parameters and buffers what a call has written into them.

    Args:
        names: of what the call has written.
        parameters: the names of the parameters of the call, in order.
        buffers, layouts: of buffers and parameters, by name.
    """

    def __init__(
        self,
        names: Sequence[str],
        parameters: Sequence[str],
        buffers: Mapping[str, torch.Tensor],
        layouts: Mapping[str, Layout],
    ) -> None:
        self._names, self._buffers = names, buffers
        self._parameters = {name: (parameters.index(name), layouts[name]) for name in names if name not in buffers}

    @torch.no_grad()
    def __call__(self, values: Sequence[object], parameters: Sequence[torch.Tensor]) -> None:
        """Write whole values, of which parameters take this rank's part."""
        for name, whole in zip(self._names, values, strict=True):
            assert isinstance(whole, torch.Tensor)
            if name not in self._parameters:
                if whole is not self._buffers[name]:
                    self._buffers[name].copy_(whole)
                continue
            i, layout = self._parameters[name]
            if layout.intervals is not None:
                part = whole.reshape(layout.shape)[as_slices(layout.intervals)]
                parameters[i].copy_(part.reshape(parameters[i].shape))
