"""Saving a model, an optimizer and further values of a run."""

from __future__ import annotations

import json
import os
import threading
import zlib
from collections.abc import Mapping
from pathlib import Path

import torch

from distdl.checkpoint.chunks import ChunkExchange, chunks_of
from distdl.checkpoint.file import SharedFile
from distdl.checkpoint.json_values import JSON, encoded
from distdl.checkpoint.metadata import CHECKSUM_DIGITS, VERSION, check_metadata
from distdl.checkpoint.model_state import PREFIX, SavedStates, collect_states
from distdl.checkpoint.stored import (
    NAMES,
    StoredTensor,
    check_strided,
    header_bytes,
    header_sum,
    stored_in_blocks,
    stored_view,
    stored_whole,
    with_offsets,
)
from distdl.modules.layout_lookup import layouts_behind, model_call
from distdl.modules.layouts import check_module, check_undeclared, layouts_of, ranks_of
from distdl.modules.state import extra_states, tensors_in_state
from distdl.parameters.layout import Layout
from distdl.partitions.comparison import agreed
from distdl.partitions.construction import constructing
from distdl.partitions.grid import Grid
from distdl.progress_bars import with_progress

MORE = "more/"
MARK = "distdl"  # in the metadata of the file
CHECKSUMS = f"{MARK}.checksums"  # of the chunks
HEADER_SUM = f"{MARK}.header"  # the checksum of the header
_LARGEST_HEADER = 100_000_000  # bytes; safetensors refuses a larger header


def ranks_that_save(model: object, optimizer: object) -> Grid:
    """The ranks that write or read a file together; this rank alone, if no parameter is in blocks.

    The optimizer's parameters count too, so that a rank that passes a wrong model still meets the others.
    """
    layouts = layouts_behind([model, optimizer])
    return ranks_of(layouts) if layouts else Grid.alone()


@torch.no_grad()
@model_call
def save(
    path: str | os.PathLike[str],
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    *,
    asynchronous: bool = False,
    **values: object,
) -> Saving | None:
    """Save a model and the state of its training in a safetensors file of whole tensors.

    The tensors have the names of the sequential model's ``state_dict()``, so that plain PyTorch loads them. All ranks
    write chunks of the file. An old file of this name stays whole until the new file is on the disk.

    Args:
        path: the file, in a folder that all ranks see.
        model: any model.
        optimizer: an optimizer, whose states and options are saved too.
        asynchronous: whether to write on a thread, from a copy that takes the memory of the file, divided by the ranks.
        values: numbers, strings, tensors, arrays, and lists, tuples and dicts of them, such as ``epoch=3``,
            ``scheduler=scheduler.state_dict()`` or ``rng=torch.get_rng_state()``. The first rank's values are saved.

    Returns:
        With ``asynchronous`` a :class:`distdl.checkpoint.Saving`, whose ``wait()`` completes the file; otherwise None.

    Raises:
        OSError: on all ranks, if any of them cannot write. An old file stays whole.
        TypeError: on all ranks, if ``values`` holds anything else, or a tensor has a dtype that files lack.
        ValueError: on all ranks, if their arguments differ, if the model has a tensor in blocks that is not declared,
            or if the optimizer has parameters that the model lacks.

    Collective over the communicator that the partitions come from. If no parameter is distributed, each calling rank
    saves its model. A rank needs its blocks and less than 64 MiB.

    Source: https://huggingface.co/docs/safetensors.
    """
    layouts = layouts_of(model) if isinstance(model, torch.nn.Module) else {}
    all_ranks = ranks_that_save(model, optimizer)
    if not all_ranks.known:
        return None
    extra: dict[str, torch.Tensor] = {}
    metadata: dict[str, JSON] = {"version": VERSION}
    compared: dict[str, object] = {"path": path, "asynchronous": asynchronous, "values": list(values)}
    compared |= {"optimizer": type(optimizer).__name__}
    with constructing("save", {"ranks": all_ranks}, compared):
        check_module("save", model)
        compared["model"] = summary_of(model, layouts)
        real_path = Path(os.path.realpath(os.fsdecode(path)))
        os.fsencode(real_path).decode("utf-8")  # safetensors opens no path that is not UTF-8
        values |= extra_states(model)  # under names that no argument has
        metadata["more"] = {name: encoded(value, MORE + name, extra) for name, value in values.items()}
        tensors, blocks = _tensors_of(model, layouts, all_ranks)
        state = tensors_in_state(model)
        metadata["complex"] = [
            tensor.name for tensor in tensors if blocks[tensor.name].dim() > state[tensor.name].dim()
        ]
    check_undeclared("save", model, all_ranks, layouts)
    states = SavedStates()
    if optimizer is not None:
        states = collect_states(optimizer, model, layouts, all_ranks)
        metadata["optimizer"] = states.metadata
    tensors += states.tensors + _extra_tensors(extra, all_ranks)
    blocks |= states.blocks | {name: stored_view(value) for name, value in extra.items()}
    saving = Saving(real_path, all_ranks, tensors, blocks, metadata, asynchronous)
    if asynchronous:
        return saving
    saving.wait()
    return None


def summary_of(model: torch.nn.Module, layouts: Mapping[str, Layout]) -> str:
    """A summary of a model's names and blocks, for ranks to compare."""
    cuts = [
        (name, layout.shape, layout.axes, layout.first_of, layout.kind, layout.grid.ranks, layout.grid.shape)
        for name, layout in layouts.items()
    ]
    names = [*tensors_in_state(model), *extra_states(model)]
    return f"{type(model).__name__} of {len(names)} tensors ({zlib.crc32(repr([names, cuts]).encode()):08x})"


def _tensors_of(
    model: torch.nn.Module, layouts: Mapping[str, Layout], all_ranks: Grid
) -> tuple[list[StoredTensor], dict[str, torch.Tensor]]:
    tensors, blocks = [], {}
    for name, value in tensors_in_state(model).items():
        if name.startswith((PREFIX, MORE)) or name == "__metadata__":
            raise ValueError(f"save: {name} must not begin with {PREFIX} or {MORE}, or be __metadata__")
        check_strided(name, value)
        if name in layouts:
            tensors.append(stored_in_blocks(name, value.dtype, layouts[name]))
        else:
            tensors.append(stored_whole(name, value.dtype, value.shape, all_ranks.ranks[0], all_ranks))
        blocks[name] = stored_view(value)
    return tensors, blocks


def _extra_tensors(extra: Mapping[str, torch.Tensor], all_ranks: Grid) -> list[StoredTensor]:
    """The user's tensors, which the first rank writes. Collective."""
    described = {name: [str(value.dtype), list(value.shape)] for name, value in extra.items()}
    first = json.loads(all_ranks.gather(json.dumps(described).encode())[0])
    dtypes = {str(value.dtype): value.dtype for value in extra.values()}
    return [
        stored_whole(name, dtypes[dtype], shape, all_ranks.ranks[0], all_ranks)
        for name, (dtype, shape) in first.items()
    ]


class Saving:
    """A file that is being written while the program goes on."""

    def __init__(
        self,
        path: Path,
        all_ranks: Grid,
        tensors: list[StoredTensor],
        blocks: Mapping[str, torch.Tensor],
        metadata: dict[str, JSON],
        in_thread: bool,
    ) -> None:
        self._tensors, self._metadata, self._all_ranks = with_offsets(tensors), check_metadata({**metadata}), all_ranks
        self._chunks = chunks_of(sum(tensor.nbytes for tensor in tensors))
        size = len(self._header({}))
        with constructing("save", {"ranks": all_ranks}, {"header": size}):
            if size > _LARGEST_HEADER:
                raise ValueError(f"save: the header of {path} would have {size} bytes; {_LARGEST_HEADER} are possible")
        self._thread: threading.Thread | None = None
        self._file = SharedFile(path, all_ranks)
        copied: list[tuple[int, torch.Tensor]] = []
        exchange = ChunkExchange("save", all_ranks, self._tensors, self._chunks, blocks)
        is_first = all_ranks.me == all_ranks.ranks[0]
        for turn in with_progress("save", range(exchange.rounds), is_first):
            chunk = exchange.gather(turn)
            if chunk is not None and in_thread:
                copied.append((chunk[0], chunk[1].clone()))
            elif chunk is not None:
                self._write(size, *chunk)
        if in_thread:
            self._thread = threading.Thread(target=self._write_all, args=(size, copied), name="distdl.save")
            self._thread.start()
        else:
            self._file.sync()

    def _write(self, header: int, number: int, chunk: torch.Tensor) -> None:
        self._file.write(header + self._chunks[number][0], chunk, number)

    def _write_all(self, header: int, chunks: list[tuple[int, torch.Tensor]]) -> None:
        while chunks:
            self._write(header, *chunks.pop(0))
        self._file.sync()

    def _header(self, sums: Mapping[int, int]) -> bytes:
        text = "".join(f"{sums.get(number, 0):0{CHECKSUM_DIGITS}x}" for number in range(len(self._chunks)))
        metadata = {"format": "pt", MARK: json.dumps(self._metadata), CHECKSUMS: text}
        entries = [(tensor.name, NAMES[tensor.dtype], tensor.shape) for _, tensor in self._tensors]
        return header_bytes(self._tensors, {**metadata, HEADER_SUM: header_sum(entries, metadata)})

    def wait(self) -> None:
        """Wait until the file is on the disk, and rename it to its path. Without this call there is no file.

        Raises:
            OSError: on all ranks, if any of them could not write. An old file stays as it was.

        Collective over the ranks that save; a second call does nothing.
        """
        if self._thread is not None:
            with agreed("Saving.wait", self._all_ranks, lambda: ""):  # some ranks may be in another call
                self._thread.join()
            self._thread = None
        if self._file.is_open:
            self._file.complete(self._header(self._file.checksums()))
