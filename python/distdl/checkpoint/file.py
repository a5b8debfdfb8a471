"""A file that many ranks write, under a temporary name until all of it is on the disk."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from distdl.partitions.comparison import agreed
from distdl.partitions.grid import Grid

Bytes = NDArray[np.uint8]


def sum_of_words(data: Bytes) -> int:
    """The sum of 64-bit words, modulo 2**64, as a checksum: a CRC would take longer than most disks."""
    words = len(data) // 8 * 8
    total = int(data[:words].view(np.uint64).sum(dtype=np.uint64))
    return (total + int.from_bytes(data[words:].tobytes(), "little")) % 2**64


def open_to_read(path: Path) -> int:
    """The descriptor of a regular file. Raises OSError for anything else: reading a pipe would wait."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        kind = IsADirectoryError if stat.S_ISDIR(mode) else OSError
        raise kind(f"load: {path} is not a regular file")
    return descriptor


class SharedFile:
    """A file under a temporary name in its final folder, renamed when it is complete.

    So readers of the path see the old file or all of the new file.

    Args:
        path: the final path.
        all_ranks: the ranks that write. Constructing, :meth:`complete` and :meth:`discard` are collective over them.

    Raises:
        OSError: on all ranks, the error of any rank.
    """

    def __init__(self, path: Path, all_ranks: Grid) -> None:
        self.path, self._all_ranks = path, all_ranks
        self._root = all_ranks.me == all_ranks.ranks[0]
        self._descriptor = -1
        self._error: Exception | None = None
        self._sums: list[tuple[int, int]] = []
        name = ""
        with agreed("save", all_ranks, lambda: ""):
            if self._root:
                name = self._create()
        self._temporary = path.with_name(all_ranks.gather(name.encode())[0].decode())
        try:
            with agreed("save", all_ranks, lambda: ""):
                if not self._root:
                    flags = os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW  # the first rank made a file, not a link
                    self._descriptor = os.open(self._temporary, flags)
        except Exception:
            self.discard()
            raise

    def _create(self) -> str:
        if self.path.exists() and not stat.S_ISREG(self.path.stat().st_mode):
            raise FileExistsError(f"save: {self.path} is not a regular file, so it cannot be replaced")
        name = f".{self.path.name}.{secrets.token_hex(6)}.partial"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._descriptor = os.open(self.path.with_name(name), flags, 0o666)
        return name

    @property
    def is_open(self) -> bool:
        return self._descriptor >= 0

    def write(self, at: int, chunk: torch.Tensor, number: int) -> None:
        """Write a chunk at an offset. An error is kept for :meth:`complete`, where all ranks raise it."""
        with self._keeping_errors():
            self._sums.append((number, sum_of_words(chunk.numpy())))
            self._write(at, memoryview(chunk.numpy()))

    def _write(self, at: int, data: memoryview) -> None:
        while data and self._error is None:
            written = os.pwrite(self._descriptor, data, at)
            data, at = data[written:], at + written

    def sync(self) -> None:
        """Wait until this rank's chunks are on the disk. An error is kept for :meth:`complete`."""
        with self._keeping_errors():
            os.fsync(self._descriptor)

    @contextlib.contextmanager
    def _keeping_errors(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self._error = self._error or error

    def checksums(self) -> dict[int, int]:
        """Checksums of all chunks by number, on all ranks. Collective."""
        rows_of_ranks = self._all_ranks.gather(np.array(self._sums, dtype=np.uint64).tobytes())
        rows = np.concatenate([np.frombuffer(row, dtype=np.uint64).reshape(-1, 2) for row in rows_of_ranks])
        return {int(number): int(checksum) for number, checksum in rows}

    def complete(self, header: bytes) -> None:
        """Write the header, and rename the file if all ranks wrote without errors."""
        try:
            with agreed("save", self._all_ranks, lambda: ""):
                if self._root:
                    with self._keeping_errors():
                        self._write(0, memoryview(header))
                        os.fsync(self._descriptor)
                self._raise_error()
            with agreed("save", self._all_ranks, lambda: ""):
                if self._root:
                    self._temporary.replace(self.path)
                    folder = os.open(self.path.parent, os.O_RDONLY)
                    try:
                        os.fsync(folder)
                    finally:
                        os.close(folder)
        finally:
            self.discard()

    def _raise_error(self) -> None:
        if self._error is not None:
            reason = getattr(self._error, "strerror", None) or repr(self._error)
            raise OSError(f"save: {self.path} cannot be written: {reason}; an old file there is unchanged")

    def discard(self) -> None:
        """Close the file, and remove it if it was not renamed."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
        if self._root:
            with contextlib.suppress(FileNotFoundError):
                self._temporary.unlink()
