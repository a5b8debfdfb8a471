"""Saving a model, an optimizer and what a run needs besides."""

from __future__ import annotations

import json
import os
import threading
import zlib
from collections.abc import Mapping
from pathlib import Path

import torch
from mpi4py import MPI

from distdl.checkpoint.chunks import ChunkExchange, chunks_of
from distdl.checkpoint.file import SharedFile
from distdl.checkpoint.metadata import CHECKSUM_DIGITS, VERSION, check_metadata
from distdl.checkpoint.states import PREFIX, States, saved_states
from distdl.checkpoint.stored import (
    NAMES,
    Stored,
    as_stored,
    check_strided,
    header_of,
    header_sum,
    in_blocks,
    placed,
    whole_on,
)
from distdl.checkpoint.values import JSON, encoded
from distdl.collective.comparison import agreed
from distdl.collective.construction import constructing
from distdl.collective.grid import Grid
from distdl.nn.declared import check_module, check_undeclared, layouts_of, ranks_of
from distdl.nn.owners import layouts_behind, model_call
from distdl.nn.states import extra_states, tensors_in_state
from distdl.parameters.layout import Layout

MORE = "more/"
MARK = "distdl"  # in the metadata of the file
CHECKSUMS = f"{MARK}.checksums"  # of the chunks
HEADER_SUM = f"{MARK}.header"  # the checksum of the header
_LARGEST_HEADER = 100_000_000  # bytes; safetensors refuses larger ones


def ranks_that_save(model: object, optimizer: object) -> Grid:
    """The ranks that write or read a file together; what has no blocks belongs to its rank alone.

    The parameters of the optimizer say which ranks these are, too: also where a rank passes another model by mistake.
    """
    layouts = layouts_behind([model, optimizer])
    return ranks_of(layouts) if layouts else Grid.of(MPI.COMM_SELF)


@torch.no_grad()
@model_call
def save(
    path: str | os.PathLike[str],
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    *,
    asynchronous: bool = False,
    **more: object,
) -> Saving | None:
    """Save a model, and what its training needs to go on, in one safetensors file of whole tensors.

    The tensors of the model stand under the names of the sequential model's ``state_dict()``, so that plain PyTorch
    loads them. All ranks write the file together, in chunks. It replaces a file of this name when all of it is on the
    disk; whatever happens before, the file of before is whole.

    Args:
        path: of the file, in a folder that all ranks see.
        model: a distributed layer, or a model with distributed and other layers.
        optimizer: saved with its states and options, if given.
        asynchronous: whether to return as soon as the values are copied, and to write them meanwhile. The copy takes
            the memory of the file, divided by the ranks.
        more: numbers, strings, tensors, arrays, and lists, tuples and dicts of them, such as ``epoch=3``,
            ``scheduler=scheduler.state_dict()`` or ``rng=torch.get_rng_state()``. The first rank's are saved.

    Returns:
        With ``asynchronous`` a :class:`distdl.checkpoint.Saving`, whose ``wait()`` completes the file; otherwise None.

    Raises:
        OSError: on all ranks, if any of them cannot write. Nothing of a file that was there is lost.
        TypeError: on all ranks, if ``more`` holds anything else, or a tensor is of a dtype that files do not have.
        ValueError: on all ranks, if they pass other arguments, if the model has a tensor in blocks that is not
            declared, or if the optimizer has parameters that are not the model's.

    Collective over the communicator that the partitions come from. If no parameter of the model is distributed, each
    calling rank saves its own model. A rank needs its blocks and less than 64 MiB.

    Source: https://huggingface.co/docs/safetensors.
    """
    layouts = layouts_of(model) if isinstance(model, torch.nn.Module) else {}
    everyone = ranks_that_save(model, optimizer)
    if not everyone.known:
        return None
    extra: dict[str, torch.Tensor] = {}
    metadata: dict[str, JSON] = {"version": VERSION}
    compared: dict[str, object] = {"path": path, "asynchronous": asynchronous, "more": list(more)}
    compared |= {"optimizer": type(optimizer).__name__}
    with constructing("save", {"ranks": everyone}, compared):
        check_module("save", model)
        compared["model"] = summary_of(model, layouts)
        real_path = Path(os.path.realpath(os.fsdecode(path)))
        os.fsencode(real_path).decode("utf-8")  # safetensors opens no path that is not UTF-8
        more |= extra_states(model)  # under names that no argument has
        metadata["more"] = {name: encoded(value, MORE + name, extra) for name, value in more.items()}
        tensors, blocks = _tensors_of(model, layouts, everyone)
        own = tensors_in_state(model)
        metadata["complex"] = [one.name for one in tensors if blocks[one.name].dim() > own[one.name].dim()]
    check_undeclared("save", model, everyone, layouts)
    states = States()
    if optimizer is not None:
        states = saved_states(optimizer, model, layouts, everyone)
        metadata["optimizer"] = states.metadata
    tensors += states.tensors + _shared(extra, everyone)
    blocks |= states.blocks | {name: as_stored(value) for name, value in extra.items()}
    saving = Saving(real_path, everyone, tensors, blocks, metadata, asynchronous)
    if asynchronous:
        return saving
    saving.wait()
    return None


def summary_of(model: torch.nn.Module, layouts: Mapping[str, Layout]) -> str:
    """A summary of a model that ranks compare: its names, and how its tensors are cut."""
    cuts = [
        (name, layout.shape, layout.axes, layout.first_of, layout.kind, layout.grid.ranks, layout.grid.shape)
        for name, layout in layouts.items()
    ]
    names = [*tensors_in_state(model), *extra_states(model)]
    return f"{type(model).__name__} of {len(names)} tensors ({zlib.crc32(repr([names, cuts]).encode()):08x})"


def _tensors_of(
    model: torch.nn.Module, layouts: Mapping[str, Layout], everyone: Grid
) -> tuple[list[Stored], dict[str, torch.Tensor]]:
    """The tensors of a model, and what this rank has of them."""
    tensors, blocks = [], {}
    for name, value in tensors_in_state(model).items():
        if name.startswith((PREFIX, MORE)) or name == "__metadata__":
            raise ValueError(f"save: {name} must not begin with {PREFIX} or {MORE}, or be __metadata__")
        check_strided(name, value)
        if name in layouts:
            tensors.append(in_blocks(name, value.dtype, layouts[name]))
        else:
            tensors.append(whole_on(name, value.dtype, value.shape, everyone.ranks[0], everyone))
        blocks[name] = as_stored(value)
    return tensors, blocks


def _shared(extra: Mapping[str, torch.Tensor], everyone: Grid) -> list[Stored]:
    """The user's tensors, as the first rank has them. Collective."""
    mine = {name: [str(value.dtype), list(value.shape)] for name, value in extra.items()}
    first = json.loads(everyone.gather(json.dumps(mine).encode())[0])
    dtypes = {str(value.dtype): value.dtype for value in extra.values()}
    return [whole_on(name, dtypes[dtype], shape, everyone.ranks[0], everyone) for name, (dtype, shape) in first.items()]


class Saving:
    """A file that is being written while the program goes on."""

    def __init__(
        self,
        path: Path,
        everyone: Grid,
        tensors: list[Stored],
        blocks: Mapping[str, torch.Tensor],
        metadata: dict[str, JSON],
        in_thread: bool,
    ) -> None:
        self._tensors, self._metadata, self._everyone = placed(tensors), check_metadata({**metadata}), everyone
        self._chunks = chunks_of(sum(one.nbytes for one in tensors))
        size = len(self._header({}))
        with constructing("save", {"ranks": everyone}, {"header": size}):
            if size > _LARGEST_HEADER:
                raise ValueError(f"save: the header of {path} would have {size} bytes; {_LARGEST_HEADER} are possible")
        self._thread: threading.Thread | None = None
        self._file = SharedFile(path, everyone)
        kept: list[tuple[int, torch.Tensor]] = []
        with ChunkExchange(everyone, self._tensors, self._chunks, blocks) as exchange:
            for turn in range(exchange.rounds):
                chunk = exchange.gathered(turn)
                if chunk is not None and in_thread:
                    kept.append((chunk[0], chunk[1].clone()))
                elif chunk is not None:
                    self._write(size, *chunk)
        if in_thread:
            self._thread = threading.Thread(target=self._write_all, args=(size, kept), name="distdl.save")
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
        entries = [(one.name, NAMES[one.dtype], one.shape) for _, one in self._tensors]
        return header_of(self._tensors, {**metadata, HEADER_SUM: header_sum(entries, metadata)})

    def wait(self) -> None:
        """Wait until all of the file is on the disk, and give it its name.

        Raises:
            OSError: on all ranks, if any of them could not write. The file of before is as it was.

        Collective over the ranks that save; the second call does nothing. Without it there is no file.
        """
        if self._thread is not None:
            with agreed("Saving.wait", self._everyone, lambda: ""):  # some ranks may be in another call
                self._thread.join()
            self._thread = None
        if self._file.is_open:
            self._file.complete(self._header(self._file.checksums()))
