"""Loading a model, an optimizer and what a run saved besides."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from distdl.checkpoint.chunks import ChunkExchange, chunks_of, chunks_of_each
from distdl.checkpoint.file import checksum, open_to_read
from distdl.checkpoint.metadata import check_metadata, check_optimizer, checksums_in
from distdl.checkpoint.saving import CHECKSUMS, HEADER_SUM, MARK, MORE, ranks_that_save, summary_of
from distdl.checkpoint.states import PREFIX, load_states, names_in, states_for, unfit_groups
from distdl.checkpoint.stored import DTYPES, Stored, as_stored, check_strided, header_sum, in_blocks, whole_on
from distdl.checkpoint.values import JSON, decoded, items_of, members_of
from distdl.collective.comparison import agreed
from distdl.collective.construction import constructing
from distdl.collective.grid import Grid
from distdl.nn.declared import check_module, check_undeclared, layouts_of
from distdl.nn.owners import model_call
from distdl.nn.states import extra_states, is_extra, set_extra_states, tensors_in_state
from distdl.parameters.layout import Layout

_OURS = {MARK, CHECKSUMS, HEADER_SUM}  # in the metadata of every file that save() wrote
_PIECE = 1 << 18  # bytes; what was read is still in a near cache when it is added up

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
    """Load what :func:`distdl.save` saved, on any number of ranks, partition and layout of parameters.

    Files that plain PyTorch saved by ``safetensors.torch.save_file(model.state_dict(), path)`` are loaded as well.

    Args:
        path: of the file, which all ranks see.
        model: a distributed layer, or a model with distributed and other layers.
        optimizer: of the same kind as the one that was saved, if its states are wanted.
        strict: whether the file has to have exactly the tensors of the model. Otherwise those that both have are
            loaded, and the states and options of the optimizer where the file has them.
        rename: the names in the model of names in the file: a function, which returns None for a tensor to leave out,
            or a mapping of names, or of what stands before a dot: ``{"net": "body.net"}``.

    Returns:
        What was saved as ``more``, on every rank.

    Raises:
        OSError: on all ranks, if any of them cannot read the file, or if it is not a regular file.
        RuntimeError: on all ranks, if tensors are missing or unknown, shapes differ, or complex numbers would
            lose their imaginary parts. Nothing is loaded then.
        ValueError: on all ranks, if the file is not a safetensors file, is damaged, or changes while it is read; if the
            ranks pass other arguments; or if the model has a tensor in blocks that is not declared. Where the values
            themselves are damaged, some of them are loaded before they are found.

    Collective over the communicator that the partitions come from. If no parameter of the model is distributed, each
    calling rank loads its own model. The file is read once, and nothing in it is ever executed. A rank needs its blocks
    and less than 64 MiB.
    """
    layouts = layouts_of(model) if isinstance(model, torch.nn.Module) else {}
    everyone = ranks_that_save(model, optimizer)
    if not everyone.known:
        return {}
    compared: dict[str, object] = {"path": path, "strict": strict, "optimizer": type(optimizer).__name__}
    with constructing("load", {"ranks": everyone}, compared):
        check_module("load", model)
        compared["model"] = summary_of(model, layouts)
        file_path = Path(os.fsdecode(path))
        groups = [] if optimizer is None else names_in(optimizer, model)
    check_undeclared("load", model, everyone, layouts)
    file = _opened(file_path, everyone)
    wanted = _Wanted(file, model, layouts, everyone, rename)
    found: dict[str, object] = {}
    with constructing("load", {"ranks": everyone}, {}):
        wanted.match_model(strict)
        if optimizer is not None:
            wanted.match_optimizer(groups, strict)
        # All that the file says is understood before the first value is read, also where it is the memory of values.
        if optimizer is not None and "optimizer" in file.metadata:
            metadata = members_of(file.metadata["optimizer"])
            found = states_for(optimizer, groups, metadata, wanted.states, wanted.renamed)
        more = wanted.match_more()
        extra = wanted.match_extra(more, strict)
    _read(file, wanted, everyone)
    if optimizer is not None and found:
        load_states(optimizer, groups, found, wanted.dtypes)
    if extra:
        with agreed("load", everyone, lambda: ""):
            set_extra_states(model, extra)
    return more


@dataclass(frozen=True)
class _File:
    """The header of a file, the same on all ranks."""

    path: Path
    start: int  # of the first tensor
    tensors: list[tuple[int, Stored]]  # with their offsets, in order
    metadata: Mapping[str, JSON]
    checksums: list[int]


def _opened(path: Path, everyone: Grid) -> _File:
    """The header, which one rank reads. Collective."""
    text = ""
    with agreed("load", everyone, lambda: ""):
        if everyone.me == everyone.ranks[0]:
            text = json.dumps(_header(path))
    start, entries, metadata = json.loads(everyone.gather(text.encode())[0])
    with agreed("load", everyone, lambda: ""):
        return _understood(path, start, entries, metadata)


def _understood(path: Path, start: int, entries: list[list[Any]], metadata: Mapping[str, str]) -> _File:
    """Raises ValueError for a file that says it is one of ours, and has another header."""
    offset, tensors = 0, []
    for name, dtype, shape in entries:
        tensors.append((offset, Stored(name, DTYPES[dtype], tuple(shape))))
        offset += tensors[-1][1].nbytes
    if not _OURS & metadata.keys():
        return _File(path, start, tensors, {}, [])
    try:
        if not metadata.keys() >= _OURS:
            raise ValueError(f"it has to have {sorted(_OURS)}, and has {sorted(_OURS & metadata.keys())}")
        sums = checksums_in(metadata[CHECKSUMS], len(chunks_of(offset)))
        said = check_metadata(json.loads(metadata[MARK]))
        if "optimizer" in said:
            check_optimizer(said["optimizer"], [one for _, one in tensors], PREFIX)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"load: {path} is damaged: its header is not one of a checkpoint: {error}") from None
    return _File(path, start, tensors, said, sums)


def _header(path: Path) -> list[object]:
    """Where the tensors begin, their names, dtypes and shapes in order, and the metadata."""
    descriptor = open_to_read(path)
    try:
        first = os.pread(descriptor, 8, 0)
    finally:
        os.close(descriptor)
    try:
        with safe_open(path, framework="pt") as file:
            slices = [(name, file.get_slice(name)) for name in file.offset_keys()]
            entries = [(name, one.get_dtype(), one.get_shape()) for name, one in slices]
            metadata = file.metadata() or {}
    except SafetensorError as error:
        raise ValueError(f"load: {path} is not a safetensors file, or it is damaged: {error}") from None
    unknown = next((dtype for _, dtype, _ in entries if dtype not in DTYPES), None)
    if unknown is not None:
        raise ValueError(f"load: {path} has a tensor of dtype {unknown}, which torch does not have")
    rest = {key: text for key, text in metadata.items() if key != HEADER_SUM}
    if _OURS & metadata.keys() and metadata.get(HEADER_SUM) != header_sum(entries, rest):
        raise ValueError(f"load: {path} is damaged: its header is not the one that was written")
    return [8 + int.from_bytes(first, "little"), entries, metadata]


class _Wanted:
    """Which tensors of a file go where."""

    def __init__(
        self,
        file: _File,
        model: torch.nn.Module,
        layouts: Mapping[str, Layout],
        everyone: Grid,
        rename: Rename | None,
    ) -> None:
        self._file, self._layouts, self._everyone, self._rename = file, layouts, everyone, rename
        self._own, self._extra = tensors_in_state(model), set(extra_states(model))
        self.tensors: dict[str, Stored] = {}
        self.blocks: dict[str, torch.Tensor] = {}
        self.states: dict[str, dict[str, torch.Tensor]] = {}
        self.dtypes: dict[str, torch.dtype] = {}  # of the model's tensors in the file, by their names in the model

    def renamed(self, name: str) -> str | None:
        """The name in the model of a name in the file."""
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

    def _place(self, one: Stored, name: str, block: torch.Tensor) -> None:
        """Let a tensor of the file go where a parameter lives. Raises if it cannot be written there."""
        check_strided(name, block)
        if torch._debug_has_internal_overlap(block) == 1:
            raise RuntimeError(f"load: elements of {name} share memory, as after expand(); make it a clone() of itself")
        if name in self._layouts:
            spread = in_blocks(one.name, block.dtype, self._layouts[name])
        else:
            spread = whole_on(one.name, block.dtype, self._whole_shape(name), self._everyone.ranks[0], self._everyone)
        if spread.shape != one.shape:
            raise RuntimeError(f"load: {one.name} has shape {list(one.shape)}; it has to be {list(spread.shape)}")
        self.tensors[one.name] = replace(one, first=spread.first, held=spread.held)
        self.blocks[one.name] = as_stored(block)

    def _whole_shape(self, name: str) -> tuple[int, ...]:
        return self._layouts[name].shape if name in self._layouts else tuple(self._own[name].shape)

    def match_model(self, strict: bool) -> None:
        """Find the tensors of the model. Raises RuntimeError where they do not fit."""
        unknown, other, twice, found = [], [], [], set()
        pairs = items_of(self._file.metadata.get("complex", []))
        for _, one in self._file.tensors:
            name = self.renamed(one.name) if not one.name.startswith((PREFIX, MORE)) else None
            if name is None:
                continue
            if name not in self._own:
                unknown.append(name)
                continue
            shape = self._whole_shape(name)
            stored = (*shape, 2) if self._own[name].dtype is torch.complex128 else shape
            twice += [name] * (name in found)
            found.add(name)
            self.dtypes[name] = one.dtype
            of = torch.complex128 if one.name in pairs else one.dtype
            if one.shape != stored:
                other.append(f"{name} of shape {list(one.shape)}, where the model has {list(shape)}")
            elif not _takes(self._own[name].dtype, of):
                other.append(f"{name} of {of}, where the model has {self._own[name].dtype}")
            else:
                self._place(one, name, self._own[name])
        missing = [name for name in self._own if name not in found]
        problems = {"it has no": missing, "the model has no": unknown} if strict else {}
        problems |= {"it has": other, "several tensors in it are called": twice}
        if any(problems.values()):
            text = "; ".join(f"{what} {_some(names)}" for what, names in problems.items() if names)
            raise RuntimeError(f"load: {self._file.path} does not fit the model: {text}")

    def match_optimizer(self, groups: list[list[str]], strict: bool) -> None:
        """Find the states of the optimizer. Raises RuntimeError where the file has none, or they do not fit."""
        saved = self._file.metadata.get("optimizer")
        if not isinstance(saved, dict):
            if strict:
                raise RuntimeError(f"load: {self._file.path} has no states of an optimizer")
            return
        problem = unfit_groups(saved["groups"], groups, self.renamed)
        if problem is not None and strict:
            raise RuntimeError(f"load: {self._file.path}: {problem}")
        known = {name for names in groups for name in names}
        unlike = items_of(saved["unlike"])
        for _, one in self._file.tensors:
            if not one.name.startswith(PREFIX):
                continue
            _, key, parameter = one.name.split("/", 2)
            name = self.renamed(parameter)
            if name not in known:
                continue
            if one.name in unlike:
                block = self._whole(one)
            else:
                as_pairs = len(one.shape) > len(self._whole_shape(name))
                dtype = torch.complex128 if as_pairs else one.dtype
                block = torch.zeros(self._own[name].shape, dtype=dtype, device=self._own[name].device)
                self._place(one, name, block)
            if not _takes(self._own[name].dtype, block.dtype):
                raise ValueError(f"load: {one.name} is of {block.dtype}, and {name} of {self._own[name].dtype}")
            self.states.setdefault(name, {})[key] = block

    def match_more(self) -> dict[str, object]:
        """The objects saved in ``more``; their tensors get values when the file is read. Raises ValueError."""
        kept = {one.name: self._whole(one) for _, one in self._file.tensors if one.name.startswith(MORE)}
        more = members_of(self._file.metadata.get("more", {}))
        return {name: decoded(value, kept) for name, value in more.items()}

    def match_extra(self, more: dict[str, object], strict: bool) -> dict[str, object]:
        """Take what modules keep beside tensors out of what the user saved besides. Raises RuntimeError."""
        found = {self.renamed(name): more.pop(name) for name in list(more) if is_extra(name)}
        if strict and found.keys() != self._extra:
            raise RuntimeError(
                f"load: {self._file.path} does not fit the model: it has the extra states {sorted(map(str, found))}, "
                f"and the model {sorted(self._extra)}"
            )
        return {name: one for name, one in found.items() if name in self._extra}

    def _whole(self, one: Stored) -> torch.Tensor:
        spread = whole_on(one.name, one.dtype, one.shape, self._everyone.ranks[0], self._everyone)
        self.tensors[one.name] = replace(one, first=spread.first, held=spread.held)
        self.blocks[one.name] = torch.empty(one.shape, dtype=one.dtype, device="cpu")
        return self.blocks[one.name]


def _takes(dtype: torch.dtype, saved: torch.dtype) -> bool:
    """Whether values go into a tensor as they are: numbers with an imaginary part need a place for it.

    A file has pairs of numbers for complex128; they are no complex numbers of a smaller dtype.
    """
    return not saved.is_complex or dtype is saved or (dtype.is_complex and saved is not torch.complex128)


def _some(names: list[str]) -> str:
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")


def _read(file: _File, wanted: _Wanted, everyone: Grid) -> None:
    """Read the file in chunks, and bring them to where they are wanted. Collective."""
    tensors = [(offset, wanted.tensors.get(one.name, one)) for offset, one in file.tensors]
    size = sum(one.nbytes for _, one in tensors)
    chunks = chunks_of(size) if file.checksums else chunks_of_each(tensors)
    descriptor, problem = -1, None
    with agreed("load", everyone, lambda: ""):
        descriptor = open_to_read(file.path)
    try:
        with ChunkExchange(everyone, tensors, chunks, wanted.blocks) as exchange:
            for turn in range(exchange.rounds):
                chunk = None
                if turn < len(exchange.own):
                    number = exchange.own[turn]
                    start, _ = chunks[number]
                    chunk = exchange.memory_of(number)
                    expected = file.checksums[number] if file.checksums else None
                    problem = _filled(chunk, descriptor, file.start + start, expected) or problem
                exchange.scatter(turn, chunk)
    finally:
        os.close(descriptor)
    with agreed("load", everyone, lambda: ""):
        if problem is not None:
            raise ValueError(f"load: {file.path} is damaged, or changed while it was read: {problem}")


def _filled(chunk: torch.Tensor, descriptor: int, at: int, expected: int | None) -> str | None:
    """Read a chunk; what is wrong with it, if anything is."""
    data, total = chunk.numpy(), 0
    for start in range(0, len(data), _PIECE):
        piece = data[start : start + _PIECE]
        problem = _read_piece(piece.data, descriptor, at + start)
        if problem is not None:
            return problem
        total += 0 if expected is None else checksum(piece)
    if expected is not None and total % 2**64 != expected:
        return f"the {len(chunk)} bytes at {at} are not those that were written"
    return None


def _read_piece(rest: memoryview, descriptor: int, at: int) -> str | None:
    while rest:
        try:
            count = os.preadv(descriptor, [rest], at)
        except OSError as error:
            return str(error.strerror)
        if count == 0:
            return f"it ends at byte {at}"
        rest, at = rest[count:], at + count
    return None
