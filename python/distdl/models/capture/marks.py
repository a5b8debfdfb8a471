"""Marks in a distributed model where one process would keep tensors of its calls, which each call computes anew."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import torch

from distdl.models.capture.unrecorded import own_attributes
from distdl.torch_compat.autograd import number_of_writes
from distdl.torch_compat.fake import FakeTensor
from distdl.torch_compat.trees import tree_leaves, tree_map_only


class Mark:
    """Stands for a tensor in an attribute.

    Attributes:
        without_gradients: whether a call without gradients has made the tensor, and the current call has some.
    """

    without_gradients = False

    def __repr__(self) -> str:
        return "(a tensor that each call computes anew)"


class KeptTable(NamedTuple):
    """An attribute in which a model keeps tensors that depend on parameters and buffers alone.

    Attributes:
        path, name: of the module, and of the attribute in it.
        content: the attribute, with marks in place of tensors.
        sources: the names of the parameters and buffers.
    """

    path: str
    name: str
    content: object
    sources: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.path}.{self.name}".removeprefix(".")


class _MadeTable(NamedTuple):
    """A table as a call has made it.

    Attributes:
        sources: the parameters and buffers with the numbers of writes into them.
    """

    table: KeptTable
    sources: list[tuple[torch.Tensor, int]]
    with_gradients: bool


def is_marked(value: object) -> bool:
    """Whether an attribute holds marks."""
    return any(True for _ in marks_in(value))


def marks_in(value: object) -> Iterator[Mark]:
    """The marks in an attribute."""
    return (leaf for leaf in tree_leaves(value) if isinstance(leaf, Mark))


def kept_tables(model: torch.nn.Module, kept: Mapping[int, Sequence[str]]) -> list[KeptTable]:
    """The attributes of a recorded model that hold kept tensors.

    Args:
        kept: the names of parameters and buffers on which each depends, by the ids of the tensors.
    """
    tables = []
    for path, module in model.named_modules() if kept else ():
        for name, value in own_attributes(module):
            sources = {source for leaf in tree_leaves(value) for source in kept.get(id(leaf), ())}
            if sources:
                content = tree_map_only(FakeTensor, lambda _: Mark(), value)
                tables.append(KeptTable(path, name, content, tuple(sorted(sources))))
    return tables


def made_without_gradients(model: torch.nn.Module) -> set[tuple[str, str]]:
    """The modules and attributes with marks of tensors that were made without gradients, for a call that has some."""
    return {
        (path, name)
        for path, module in model.named_modules()
        for name, value in own_attributes(module)
        if any(mark.without_gradients for mark in marks_in(value))
    }


def ids_at(model: torch.nn.Module, places: set[tuple[str, str]]) -> frozenset[int]:
    """The ids of the objects in attributes."""
    return frozenset(
        id(leaf) for path, name in places for leaf in tree_leaves(vars(model.get_submodule(path)).get(name))
    )


class Marks:
    """The marks in a model. A table that one process would compute with after its sources changed is refused."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._modules = dict(model.named_modules())
        self._made: dict[Mark, _MadeTable] = {}  # as long as the model has not emptied the attribute

    def note(self) -> str:
        """Describe tables that were made without gradients, in a call that has some; "" without such tables.

        Raises:
            NotImplementedError: if a source of a table has changed, and the attribute is not empty.
        """
        texts = []
        for mark, (table, sources, with_gradients) in [*self._made.items()]:
            if mark not in marks_in(vars(self._modules[table.path]).get(table.name)):
                del self._made[mark]
                continue
            for name, before, now in zip(table.sources, sources, self._sources(table), strict=True):
                if now[0] is not before[0] or now[1] != before[1]:
                    raise NotImplementedError(
                        f"distribute: the model keeps {table} from an earlier call, and {name} has changed since; in "
                        "one process the model computes with the old values. Empty it after each change, as train() "
                        "and eval() of some models do"
                    )
            mark.without_gradients = torch.is_grad_enabled() and not with_gradients
            if mark.without_gradients:
                texts.append(f"{table} made without gradients")
        return ", ".join(texts)

    def put(self, tables: Sequence[KeptTable]) -> None:
        """Put marks where a call makes tables that are not there."""
        for table in tables:
            mark, module = Mark(), self._modules[table.path]
            content = tree_map_only(Mark, lambda _, mark=mark: mark, table.content)
            now = vars(module).get(table.name)
            if isinstance(content, dict) and isinstance(now, dict):
                new = {key: part for key, part in content.items() if is_marked(part) and not is_marked(now.get(key))}
                content = {**now, **new} if new else now
            elif is_marked(now):
                continue
            if content is not now:
                setattr(module, table.name, content)
                self._made[mark] = _MadeTable(table, self._sources(table), torch.is_grad_enabled())

    def _sources(self, table: KeptTable) -> list[tuple[torch.Tensor, int]]:
        places = (source.rpartition(".") for source in table.sources)
        tensors = [getattr(self._modules[path], leaf) for path, _, leaf in places]
        return [(tensor, number_of_writes(tensor)) for tensor in tensors]
