from collections.abc import Sequence
from typing import TypeAlias

import torch
from mpi4py import MPI

_Workers: TypeAlias = tuple[list[int], list[int]]  # shape, and ranks of the root communicator
_Halo: TypeAlias = Sequence[Sequence[int]]

class MPIError(RuntimeError): ...

def mpi_initialized() -> bool: ...
def mpi_library_version() -> str: ...
def balanced_block(n: int, p: int, i: int) -> tuple[int, int]: ...
def grid_index(shape: Sequence[int], rank: int) -> list[int]: ...
def grid_rank(shape: Sequence[int], index: Sequence[int]) -> int: ...
def matched_ranks(
    one: Sequence[int],
    many: Sequence[int],
    one_rank: int,
    transpose_one: bool = False,
    transpose_many: bool = False,
) -> list[int]: ...
def pieces(extent: int, workers: int, wanted: tuple[int, int]) -> list[tuple[int, int, int]]: ...
def set_structure_check(on: bool) -> None: ...
def structure_check() -> bool: ...
def live_communicators() -> int: ...

class Window:
    def __init__(
        self,
        kernel: int,
        stride: int = 1,
        padding: tuple[int, int] = (0, 0),
        dilation: int = 1,
        ceil_mode: bool = False,
    ) -> None: ...
    @property
    def padding(self) -> tuple[int, int]: ...
    def outputs(self, n: int) -> int: ...
    def reads(self, outputs: tuple[int, int]) -> tuple[int, int]: ...

class Forum:
    def __init__(self, root: MPI.Comm | None, ranks: Sequence[int]) -> None: ...
    def compare(self, what: str, text: str) -> tuple[bool, list[str]]: ...
    def gather(self, bytes: bytes | str) -> list[bytes]: ...
    def view(self, shape: Sequence[int]) -> MPI.Intracomm: ...

class LayerAgreement:
    def __init__(self, layer: str, root: MPI.Comm | None, ranks: Sequence[int]) -> None: ...
    @property
    def active(self) -> bool: ...
    def changed(self, input: object, problem: str = "") -> bool: ...
    def forget(self) -> None: ...
    @property
    def structure(self) -> list[tuple[list[int], torch.dtype]]: ...

class Primitive:
    def __call__(self, x: torch.Tensor) -> torch.Tensor: ...
    def adjoint(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor: ...
    @property
    def active(self) -> bool: ...

class Broadcast(Primitive):
    def __init__(
        self,
        root: MPI.Comm | None,
        P_x: _Workers,
        P_y: _Workers,
        transpose_src: bool,
        transpose_dest: bool,
        preserve_batch: bool,
    ) -> None: ...

class SumReduce(Primitive):
    def __init__(
        self,
        root: MPI.Comm | None,
        P_x: _Workers,
        P_y: _Workers,
        transpose_src: bool,
        transpose_dest: bool,
        preserve_batch: bool,
    ) -> None: ...

class AllSumReduce(Primitive):
    def __init__(
        self, root: MPI.Comm | None, P_x: _Workers, along: list[int] | None, keep: list[int] | None
    ) -> None: ...

class AllGather(Primitive):
    def __init__(
        self, root: MPI.Comm | None, P_x: _Workers, along: list[int] | None, keep: list[int] | None
    ) -> None: ...

class ReduceScatter(Primitive):
    def __init__(
        self, root: MPI.Comm | None, P_x: _Workers, along: list[int] | None, keep: list[int] | None
    ) -> None: ...

class Exchange(Primitive):
    @property
    def blocks(self) -> list[list[int]]: ...

class Repartition(Exchange):
    def __init__(self, root: MPI.Comm | None, P_x: _Workers, P_y: _Workers, preserve_batch: bool) -> None: ...

class HaloExchange(Exchange):
    def __init__(
        self, root: MPI.Comm | None, P_x: _Workers, halos: Sequence[_Halo], periodic: Sequence[bool], fill: float
    ) -> None: ...

class WindowExchange(Exchange):
    def __init__(
        self,
        layer: str,
        root: MPI.Comm | None,
        P_x: _Workers,
        windows: Sequence[Window],
        periodic: bool,
        fill: float,
    ) -> None: ...
    @property
    def outputs(self) -> list[list[int]]: ...
