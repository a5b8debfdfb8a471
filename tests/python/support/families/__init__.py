"""Examples of layers beside their sequential twins: one module for each family of layers.

A module of this folder has ``EXAMPLES``: :class:`Example` by name. The name begins with the name of the layer, or with
the name of its twin in torch.nn. A layer has several examples where its options take different ways. All tests of
layers run over them: tests/python/nn/test_families.py, votes, first and second derivatives, and misuses.

A module may also have

- ``MISUSES`` and ``OTHER``, and ``rows()``: see tests/python/support/misuses/declared.py;
- ``described``: functions by the name of a class of torch.nn, from a module of that class and the arguments of its call
  to the :class:`Example`, or None where the layer refuses what the module takes. PyTorch's own samples go through it;
- ``SAMPLES``: how many of PyTorch's samples of each class have an example, so that none goes missing unnoticed.
"""

import importlib
import pkgutil
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

import distdl.nn as dnn
from support.blocks import grid_shapes
from support.ranks import job

Cut = tuple[int | None, ...]
"""For each dimension of a tensor the axis of P_x that cuts it into blocks; None where it is whole."""


@dataclass(frozen=True)
class Example:
    """A layer beside its sequential twin, on every P_x that it takes.

    Attributes:
        twin: makes the module of torch.nn, the same on all ranks, in double precision. A twin that is written in the
            tests has the names and the order of the layer's parameters, and its options as attributes.
        inputs: makes the whole tensors of a call, the same on all ranks.
        dims: the number of dimensions of P_x.
        cuts: how each of the inputs is cut. Workers that differ only along other axes have the same block.
        results: how each of the results is cut; None for a number that all ranks have.
        whole: axes of P_x along which the layer takes one worker alone.
        first_of: axes of P_x along which only the workers at place 0 have the result.
        balanced: axes of P_x along which the layer takes balanced blocks alone.
        kind: the public name of the layer, where it is not the layer of the twin's class in ``nn.SEQUENTIAL``.
        options: further arguments of ``from_sequential``.
        call: further arguments of the call, which are the same on all ranks and no tensors in blocks.
        differentiable: which of the inputs have derivatives; by default all of floating point.
        second: whether torch has second derivatives.
        tolerance: relative to the largest element.
        layer: makes the layer where nothing else does, from the twin and P_x. Options, dtype and parameters are the
            twin's, which tests also convert to other dtypes.
    """

    twin: Callable[[], torch.nn.Module]
    inputs: Callable[[], tuple[torch.Tensor, ...]]
    dims: int
    cuts: tuple[Cut, ...]
    results: tuple[Cut | None, ...]
    whole: tuple[int, ...] = ()
    first_of: tuple[int, ...] = ()
    balanced: tuple[int, ...] = ()
    kind: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    call: Mapping[str, Any] = field(default_factory=dict)
    differentiable: tuple[int, ...] | None = None
    second: bool = True
    tolerance: float = 1e-12
    layer: Callable[..., torch.nn.Module] | None = None

    def make(self, twin: torch.nn.Module, P_x: Any) -> torch.nn.Module:
        """The layer with the twin's options and parameters."""
        if self.layer is not None:
            return self.layer(twin, P_x)
        kind = self.layer_class(twin)
        if kind.sequential_classes():
            return kind.from_sequential(twin, P_x, **self.options)
        layer = kind(P_x, **{**kind.options_of(twin), **self.options})
        layer.take_weights(twin, root=0)
        return layer.train(twin.training)

    def layer_class(self, twin: torch.nn.Module) -> Any:
        """The class of the layer."""
        return dnn.SEQUENTIAL[type(twin)] if self.kind is None else getattr(dnn, self.kind)


def splits(example: Example, size: int = job.size) -> list[tuple[int, ...]]:
    """The shapes of P_x for which the layer is made, of so many workers, or of fewer where there is none."""
    shapes = grid_shapes(example.dims, size, fixed=example.whole)
    full = [shape for shape in shapes if torch.Size(shape).numel() == size]
    return full or [shapes[-1]]


FAMILIES = [importlib.import_module(f"{__name__}.{info.name}") for info in pkgutil.iter_modules(__path__)]
EXAMPLES: dict[str, Example] = {name: example for family in FAMILIES for name, example in family.EXAMPLES.items()}


def layer_shown(name: str) -> str:
    """The public name of the layer that an example of this name shows: its first word, or the layer of its twin."""
    word = re.findall(r"\w+", name)[0]
    forms = [form for form in (f"Distributed{word}", word) if form in dnn.__all__]
    return forms[0] if forms else dnn.SEQUENTIAL[type(EXAMPLES[name].twin())].__name__


LAYERS: dict[str, list[Example]] = {}
"""The examples of each layer, by its public name."""
for _name, _example in EXAMPLES.items():
    LAYERS.setdefault(layer_shown(_name), []).append(_example)
