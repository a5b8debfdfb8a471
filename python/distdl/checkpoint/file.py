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

from distdl.collective.comparison import agreed
from distdl.collective.grid import Grid

Bytes = NDArray[np.uint8]


def checksum(data: Bytes) -> int:
    """The sum of the 64-bit words of these bytes, modulo 2**64: a CRC would take longer than most disks."""
    words = len(data) // 8 * 8
    total = int(data[:words].view(np.uint64).sum(dtype=np.uint64))
    return (total + int.from_bytes(data[words:].tobytes(), "little")) % 2**64


def open_to_read(path: Path) -> int:
    """The descriptor of a regular file. Raises OSError for anything else: a pipe would let its reader wait."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        kind = IsADirectoryError if stat.S_ISDIR(mode) else OSError
        raise kind(f"load: {path} is not a regular file")
    return descriptor


class SharedFile:
    """A file under a temporary name in the folder where it is going to be.

    Each rank writes ranges of bytes by ``pwrite``. It is the rename that makes them the file: whoever opens the path
    sees the file of before, or all of the new one.

    Args:
        path: where the file is going to be.
        everyone: the ranks that write. Constructing, :meth:`complete` and :meth:`discard` are collective over them.

    Raises:
        OSError: on all ranks, what the system says on any of them.
    """

    def __init__(self, path: Path, everyone: Grid) -> None:
        self.path, self._everyone = path, everyone
        self._root = everyone.me == everyone.ranks[0]
        self._descriptor = -1
        self._error: Exception | None = None
        self._sums: list[tuple[int, int]] = []
        name = ""
        with agreed("save", everyone, lambda: ""):
            if self._root:
                name = self._create()
        self._temporary = path.with_name(everyone.gather(name.encode())[0].decode())
        try:
            with agreed("save", everyone, lambda: ""):
                if not self._root:
                    flags = os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW  # the first rank made a file, and no link
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
        """Whether the file is neither complete nor discarded."""
        return self._descriptor >= 0

    def write(self, at: int, chunk: torch.Tensor, number: int) -> None:
        """Write a chunk at an offset. An error is kept for :meth:`complete`, where all ranks raise it."""
        with self._keeping_errors():
            self._sums.append((number, checksum(chunk.numpy())))
            self._write(at, memoryview(chunk.numpy()))

    def _write(self, at: int, rest: memoryview) -> None:
        while rest and self._error is None:
            written = os.pwrite(self._descriptor, rest, at)
            rest, at = rest[written:], at + written

    def sync(self) -> None:
        """Wait until what this rank wrote is on the disk. An error is kept as well."""
        with self._keeping_errors():
            os.fsync(self._descriptor)

    @contextlib.contextmanager
    def _keeping_errors(self) -> Iterator[None]:
        """Keep the first error, whatever it is: after it the file cannot become whole."""
        try:
            yield
        except Exception as error:
            self._error = self._error or error

    def checksums(self) -> dict[int, int]:
        """Checksums of all chunks by number, on all ranks. Collective."""
        gathered = self._everyone.gather(np.array(self._sums, dtype=np.uint64).tobytes())
        rows = np.concatenate([np.frombuffer(one, dtype=np.uint64).reshape(-1, 2) for one in gathered])
        return {int(number): int(one) for number, one in rows}

    def complete(self, header: bytes) -> None:
        """Write the header, and give the file its name if all ranks wrote what they had to."""
        try:
            with agreed("save", self._everyone, lambda: ""):
                if self._root:
                    with self._keeping_errors():
                        self._write(0, memoryview(header))
                        os.fsync(self._descriptor)
                self._raise()
            with agreed("save", self._everyone, lambda: ""):
                if self._root:
                    self._temporary.replace(self.path)
                    folder = os.open(self.path.parent, os.O_RDONLY)
                    try:
                        os.fsync(folder)
                    finally:
                        os.close(folder)
        finally:
            self.discard()

    def _raise(self) -> None:
        if self._error is not None:
            reason = getattr(self._error, "strerror", None) or repr(self._error)
            raise OSError(f"save: {self.path} cannot be written: {reason}; what was there is as it was")

    def discard(self) -> None:
        """Close the file, and remove it where it did not get its name."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
        if self._root:
            with contextlib.suppress(FileNotFoundError):
                self._temporary.unlink()
