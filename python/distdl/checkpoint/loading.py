"""Loading a model, an optimizer and further values of a run."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from distdl.checkpoint.chunks import ChunkExchange, chunks_of, chunks_of_tensors
from distdl.checkpoint.file import open_to_read, sum_of_words
from distdl.checkpoint.metadata import check_metadata, check_optimizer, checksums_in
from distdl.checkpoint.model_state import PREFIX, groups_problem, load_optimizer, loadable_state, parameter_names
from distdl.checkpoint.numbers import JSON, decoded, items_of, members_of
from distdl.checkpoint.saving import CHECKSUMS, HEADER_SUM, MARK, MORE, ranks_that_save, summary_of
from distdl.checkpoint.stored import (
    DTYPES,
    StoredTensor,
    check_strided,
    header_sum,
    stored_in_blocks,
    stored_view,
    stored_whole,
)
from distdl.modules.layout_lookup import model_call
from distdl.modules.layouts import check_module, check_undeclared, layouts_of
from distdl.modules.state import extra_states, is_extra, set_extra_states, tensors_in_state
from distdl.parameters.layout import Layout
from distdl.partitions.comparison import agreed
from distdl.partitions.construction import constructing
from distdl.partitions.grid import Grid
from distdl.torch_compat.memory import overlaps_itself

_OURS = {MARK, CHECKSUMS, HEADER_SUM}  # in the metadata of every file that save() wrote
_PIECE = 1 << 18  # bytes; a piece is still in a near cache when its checksum is computed

Rename = Mapping[str, str] | Callable[[str], str | None]


@torch.no_grad()
@model_call
def load(
    path: str | os.PathLike[str],
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    strict: bool = True,
    rename: Rename | None = None,
) -> dict[str, object]:
    """Load a file of :func:`distdl.save`, on any number of ranks, partition and layout of parameters.

    Files of ``safetensors.torch.save_file(model.state_dict(), path)`` are loaded as well.

    Args:
        path: the file, which all ranks see.
        model: any model.
        optimizer: an optimizer of the saved kind, to load its states too.
        strict: whether the file must have exactly the model's tensors; otherwise common tensors and states are loaded.
        rename: turns names in the file into names in the model: a function, which returns None to leave out a tensor,
            or a mapping of names or of prefixes before a dot: ``{"net": "body.net"}``.

    Returns:
        The ``values`` that were saved, on every rank.

    Raises:
        OSError: on all ranks, if any of them cannot read the file, or it is not a regular file.
        RuntimeError: on all ranks, if tensors are missing or unknown, shapes differ, or complex numbers would lose
            their imaginary parts. Nothing is loaded then.
        ValueError: on all ranks, if the file is not a safetensors file, is damaged (some tensors may be
            loaded then), or changes while it is read; if the ranks' arguments differ; or if the model has a tensor in
            blocks that is not declared.

    Collective over the communicator that the partitions come from. If no parameter is distributed, each calling rank
    loads its model. Nothing in the file is executed. A rank needs its blocks and less than 64 MiB.
    """
    layouts = layouts_of(model) if isinstance(model, torch.nn.Module) else {}
    all_ranks = ranks_that_save(model, optimizer)
    if not all_ranks.known:
        return {}
    compared: dict[str, object] = {"path": path, "strict": strict, "optimizer": type(optimizer).__name__}
    with constructing("load", {"ranks": all_ranks}, compared):
        check_module("load", model)
        compared["model"] = summary_of(model, layouts)
        file_path = Path(os.fsdecode(path))
        groups = [] if optimizer is None else parameter_names(optimizer, model)
    check_undeclared("load", model, all_ranks, layouts)
    header = _read_header(file_path, all_ranks)
    plan = _LoadPlan(header, model, layouts, all_ranks, rename)
    optimizer_state: dict[str, object] = {}
    with constructing("load", {"ranks": all_ranks}, {}):
        plan.match_model(strict)
        if optimizer is not None:
            plan.match_optimizer(groups, strict)
        # The header is checked completely before values are read.
        if optimizer is not None and "optimizer" in header.metadata:
            metadata = members_of(header.metadata["optimizer"])
            optimizer_state = loadable_state(optimizer, groups, metadata, plan.states, plan.renamed)
        values = plan.match_more()
        extra = plan.match_extra(values, strict)
    _read_values(header, plan, all_ranks)
    if optimizer is not None and optimizer_state:
        load_optimizer(optimizer, groups, optimizer_state, plan.dtypes)
    if extra:
        with agreed("load", all_ranks, lambda: ""):
            set_extra_states(model, extra)
    return values


@dataclass(frozen=True)
class _Header:
    """The header of a file, the same on all ranks."""

    path: Path
    start: int  # of the first tensor
    tensors: list[tuple[int, StoredTensor]]  # with their offsets, in order
    metadata: Mapping[str, JSON]
    checksums: list[int]


def _read_header(path: Path, all_ranks: Grid) -> _Header:
    """The header, which the first rank reads. Collective."""
    text = ""
    with agreed("load", all_ranks, lambda: ""):
        if all_ranks.me == all_ranks.ranks[0]:
            text = json.dumps(_raw_header(path))
    start, entries, metadata = json.loads(all_ranks.gather(text.encode())[0])
    with agreed("load", all_ranks, lambda: ""):
        return _parse_header(path, start, entries, metadata)


def _parse_header(path: Path, start: int, entries: list[list[Any]], metadata: Mapping[str, str]) -> _Header:
    """Raises ValueError for a file with an invalid header of :func:`distdl.save`."""
    offset, tensors = 0, []
    for name, dtype, shape in entries:
        tensors.append((offset, StoredTensor(name, DTYPES[dtype], tuple(shape))))
        offset += tensors[-1][1].nbytes
    if not _OURS & metadata.keys():
        return _Header(path, start, tensors, {}, [])
    try:
        if not metadata.keys() >= _OURS:
            raise ValueError(f"it has to have {sorted(_OURS)}, and has {sorted(_OURS & metadata.keys())}")
        sums = checksums_in(metadata[CHECKSUMS], len(chunks_of(offset)))
        parsed = check_metadata(json.loads(metadata[MARK]))
        if "optimizer" in parsed:
            check_optimizer(parsed["optimizer"], [tensor for _, tensor in tensors], PREFIX)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"load: {path} is damaged: its header is not a header of a checkpoint: {error}") from None
    return _Header(path, start, tensors, parsed, sums)


def _raw_header(path: Path) -> list[object]:
    """The offset of the first tensor, (name, dtype, shape) of all tensors, and the metadata."""
    descriptor = open_to_read(path)
    try:
        first = os.pread(descriptor, 8, 0)
    finally:
        os.close(descriptor)
    try:
        with safe_open(path, framework="pt") as file:
            slices = [(name, file.get_slice(name)) for name in file.offset_keys()]
            entries = [(name, view.get_dtype(), view.get_shape()) for name, view in slices]
            metadata = file.metadata() or {}
    except SafetensorError as error:
        raise ValueError(f"load: {path} is not a safetensors file, or it is damaged: {error}") from None
    unknown = next((dtype for _, dtype, _ in entries if dtype not in DTYPES), None)
    if unknown is not None:
        raise ValueError(f"load: {path} has a tensor of dtype {unknown}, which torch does not have")
    unsummed = {key: text for key, text in metadata.items() if key != HEADER_SUM}
    if _OURS & metadata.keys() and metadata.get(HEADER_SUM) != header_sum(entries, unsummed):
        raise ValueError(f"load: {path} is damaged: its header has changed since it was written")
    return [8 + int.from_bytes(first, "little"), entries, metadata]


class _LoadPlan:
    """Matches the tensors of a file with the model and the optimizer."""

    def __init__(
        self,
        header: _Header,
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
        self.tensors[stored.name] = replace(stored, sources=expected.sources, copies=expected.copies)
        self.blocks[stored.name] = stored_view(block)

    def _whole_shape(self, name: str) -> tuple[int, ...]:
        return self._layouts[name].shape if name in self._layouts else tuple(self._state[name].shape)

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


def _read_values(header: _Header, plan: _LoadPlan, all_ranks: Grid) -> None:
    """Read the file in chunks into the blocks of all ranks. Collective."""
    tensors = [(offset, plan.tensors.get(tensor.name, tensor)) for offset, tensor in header.tensors]
    size = sum(tensor.nbytes for _, tensor in tensors)
    chunks = chunks_of(size) if header.checksums else chunks_of_tensors(tensors)
    descriptor, problem = -1, None
    with agreed("load", all_ranks, lambda: ""):
        descriptor = open_to_read(header.path)
    try:
        with ChunkExchange("load", all_ranks, tensors, chunks, plan.blocks) as exchange:
            for turn in range(exchange.rounds):
                chunk = None
                if turn < len(exchange.local_chunks):
                    number = exchange.local_chunks[turn]
                    start, _ = chunks[number]
                    chunk = exchange.chunk_memory(number)
                    expected = header.checksums[number] if header.checksums else None
                    problem = _read_chunk(chunk, descriptor, header.start + start, expected) or problem
                exchange.scatter(turn, chunk)
    finally:
        os.close(descriptor)
    with agreed("load", all_ranks, lambda: ""):
        if problem is not None:
            raise ValueError(f"load: {header.path} is damaged, or changed while it was read: {problem}")


def _read_chunk(chunk: torch.Tensor, descriptor: int, at: int, expected: int | None) -> str | None:
    """Read a chunk. Returns the problem, or None."""
    data, total = chunk.numpy(), 0
    for start in range(0, len(data), _PIECE):
        piece = data[start : start + _PIECE]
        problem = _read_piece(piece.data, descriptor, at + start)
        if problem is not None:
            return problem
        total += 0 if expected is None else sum_of_words(piece)
    if expected is not None and total % 2**64 != expected:
        return f"the {len(chunk)} bytes at {at} differ from the bytes that were written"
    return None


def _read_piece(memory: memoryview, descriptor: int, at: int) -> str | None:
    while memory:
        try:
            count = os.preadv(descriptor, [memory], at)
        except OSError as error:
            return str(error.strerror)
        if count == 0:
            return f"it ends at byte {at}"
        memory, at = memory[count:], at + count
    return None
