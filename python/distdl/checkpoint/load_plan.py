"""The match between the tensors of a file and a model with its optimizer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import torch

from distdl.checkpoint.header import Header
from distdl.checkpoint.json_values import decoded, items_of, members_of
from distdl.checkpoint.model_state import PREFIX, groups_problem
from distdl.checkpoint.saving import MORE
from distdl.checkpoint.stored import StoredTensor, check_strided, stored_in_blocks, stored_view, stored_whole
from distdl.modules.state import extra_states, is_extra, tensors_in_state
from distdl.parameters.layout import Layout
from distdl.partitions.grid import Grid
from distdl.torch_compat.memory import overlaps_itself

Rename = Mapping[str, str] | Callable[[str], str | None]


class LoadPlan:
    """Matches the tensors of a file with the model and the optimizer."""

    def __init__(
        self,
        header: Header,
        model: torch.nn.Module,
        layouts: Mapping[str, Layout],
        all_ranks: Grid,
        rename: Rename | None,
    ) -> None:
        self._header, self._layouts, self._all_ranks, self._rename = header, layouts, all_ranks, rename
        self._state, self._extra = tensors_in_state(model), set(extra_states(model))
        self.tensors: dict[str, StoredTensor] = {}
        self.blocks: dict[str, torch.Tensor] = {}
        self.states: dict[str, dict[str, torch.Tensor]] = {}
        self.dtypes: dict[str, torch.dtype] = {}  # of the tensors in the file, by name in the model

    def renamed(self, name: str) -> str | None:
        if self._rename is None:
            return name
        if callable(self._rename):
            return self._rename(name)
        for before in sorted(self._rename, key=len, reverse=True):
            after = self._rename[before]
            if name == before:
                return after
            if name.startswith(f"{before}."):
                return f"{after}.{name[len(before) + 1 :]}" if after else name[len(before) + 1 :]
        return name

    def _place(self, stored: StoredTensor, name: str, block: torch.Tensor) -> None:
        """Have a tensor of the file read into a block. Raises if it cannot be written there."""
        check_strided(name, block)
        if overlaps_itself(block):
            raise RuntimeError(f"load: elements of {name} share memory, as after expand(); make it a clone() of itself")
        if name in self._layouts:
            expected = stored_in_blocks(stored.name, block.dtype, self._layouts[name])
        else:
            expected = stored_whole(
                stored.name, block.dtype, self._whole_shape(name), self._all_ranks.ranks[0], self._all_ranks
            )
        if expected.shape != stored.shape:
            raise RuntimeError(
                f"load: {stored.name} has shape {list(stored.shape)}; it has to be {list(expected.shape)}"
            )
        self.tensors[stored.name] = replace(
            stored, sources=expected.sources, copies=expected.copies, cut_shape=expected.cut_shape
        )
        self.blocks[stored.name] = stored_view(block)

    def _whole_shape(self, name: str) -> tuple[int, ...]:
        return self._layouts[name].whole_shape if name in self._layouts else tuple(self._state[name].shape)

    def match_model(self, strict: bool) -> None:
        """Match the model. Raises RuntimeError if it does not fit."""
        unknown, unfit, repeated, matched = [], [], [], set()
        pairs = items_of(self._header.metadata.get("complex", []))
        for _, tensor in self._header.tensors:
            name = self.renamed(tensor.name) if not tensor.name.startswith((PREFIX, MORE)) else None
            if name is None:
                continue
            if name not in self._state:
                unknown.append(name)
                continue
            shape = self._whole_shape(name)
            stored_shape = (*shape, 2) if self._state[name].dtype is torch.complex128 else shape
            repeated += [name] * (name in matched)
            matched.add(name)
            self.dtypes[name] = tensor.dtype
            dtype = torch.complex128 if tensor.name in pairs else tensor.dtype
            if tensor.shape != stored_shape:
                unfit.append(f"{name} of shape {list(tensor.shape)}, where the model has {list(shape)}")
            elif not _can_hold(self._state[name].dtype, dtype):
                unfit.append(f"{name} of {dtype}, where the model has {self._state[name].dtype}")
            else:
                self._place(tensor, name, self._state[name])
        missing = [name for name in self._state if name not in matched]
        problems = {"it has no": missing, "the model has no": unknown} if strict else {}
        problems |= {"it has": unfit, "several tensors in it are called": repeated}
        if any(problems.values()):
            text = "; ".join(f"{label} {_shortened(names)}" for label, names in problems.items() if names)
            raise RuntimeError(f"load: {self._header.path} does not fit the model: {text}")

    def match_optimizer(self, groups: list[list[str]], strict: bool) -> None:
        """Match the optimizer. Raises RuntimeError if it does not fit."""
        saved = self._header.metadata.get("optimizer")
        if not isinstance(saved, dict):
            if strict:
                raise RuntimeError(f"load: {self._header.path} has no states of an optimizer")
            return
        problem = groups_problem(saved["groups"], groups, self.renamed)
        if problem is not None and strict:
            raise RuntimeError(f"load: {self._header.path}: {problem}")
        known = {name for names in groups for name in names}
        unlike = items_of(saved["unlike"])
        for _, tensor in self._header.tensors:
            if not tensor.name.startswith(PREFIX):
                continue
            _, key, parameter = tensor.name.split("/", 2)
            name = self.renamed(parameter)
            if name not in known:
                continue
            if tensor.name in unlike:
                block = self._place_whole(tensor)
            else:
                as_pairs = len(tensor.shape) > len(self._whole_shape(name))
                dtype = torch.complex128 if as_pairs else tensor.dtype
                block = torch.zeros(self._state[name].shape, dtype=dtype, device=self._state[name].device)
                self._place(tensor, name, block)
            if not _can_hold(self._state[name].dtype, block.dtype):
                raise ValueError(f"load: {tensor.name} is of {block.dtype}, and {name} of {self._state[name].dtype}")
            self.states.setdefault(name, {})[key] = block

    def match_more(self) -> dict[str, object]:
        """The ``values`` that were saved; their tensors are filled when the file is read. Raises ValueError."""
        tensors = {
            tensor.name: self._place_whole(tensor) for _, tensor in self._header.tensors if tensor.name.startswith(MORE)
        }
        values = members_of(self._header.metadata.get("more", {}))
        return {name: decoded(value, tensors) for name, value in values.items()}

    def match_extra(self, values: dict[str, object], strict: bool) -> dict[str, object]:
        """Move the extra states of modules out of ``values``. Raises RuntimeError if they do not fit."""
        states = {self.renamed(name): values.pop(name) for name in list(values) if is_extra(name)}
        if strict and states.keys() != self._extra:
            raise RuntimeError(
                f"load: {self._header.path} does not fit the model: it has the extra states "
                f"{sorted(map(str, states))}, and the model {sorted(self._extra)}"
            )
        return {name: state for name, state in states.items() if name in self._extra}

    def _place_whole(self, stored: StoredTensor) -> torch.Tensor:
        placed = stored_whole(stored.name, stored.dtype, stored.shape, self._all_ranks.ranks[0], self._all_ranks)
        self.tensors[stored.name] = replace(stored, sources=placed.sources, copies=placed.copies)
        self.blocks[stored.name] = torch.empty(stored.shape, dtype=stored.dtype, device="cpu")
        return self.blocks[stored.name]


def _can_hold(dtype: torch.dtype, saved: torch.dtype) -> bool:
    """Whether a tensor keeps the imaginary parts of saved values.

    complex128 is saved as pairs of real numbers, which only complex128 takes.
    """
    return not saved.is_complex or dtype is saved or (dtype.is_complex and saved is not torch.complex128)


def _shortened(names: list[str]) -> str:
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
