"""The machine for which a model is planned."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

GIB = 1 << 30
_UNITS = {"": 1, "B": 1, **{f"{p}B": 1000**i for i, p in enumerate("KMGT", 1)}}
_UNITS |= {f"{p}IB": 1024**i for i, p in enumerate("KMGT", 1)}
_FORWARD_AND_BACKWARD = 3.0  # operations of a forward and a backward pass, over those of the forward pass


@dataclass(frozen=True)
class Speed:
    """The speed of a rank, in units a second, in a forward and a backward pass.

    Attributes:
        known: speeds by the number of ranks that compute at the same time: ranks share memory, and some share cores.
    """

    known: Mapping[int, float]

    def seconds(self, units: float, busy: int) -> float:
        """The time of some units of work on each of `busy` ranks."""
        counts = sorted(self.known)
        above = next((count for count in counts if count >= busy), counts[-1])
        below = max((count for count in counts if count <= busy), default=above)
        share = (busy - below) / (above - below) if above > below else 0.0
        return units * ((1 - share) / self.known[below] + share / self.known[above])


@dataclass(frozen=True)
class Machine:
    """Figures of a machine, for :func:`distdl.plans` and :func:`distdl.report`. The defaults are of a GPU cluster.

    Attributes:
        memory: bytes that a rank may use: of its device, or its share of a node. A text such as "64GiB" is converted.
        ranks_per_node: devices of a node, or cores, if each rank computes on one.
        flops: floating-point operations a second of a rank.
        memory_bandwidth: bytes a second that a rank reads and writes.
        bandwidth, latency: of messages within a node: bytes a second that a rank receives, and seconds.
        node_bandwidth, node_latency: between nodes: bytes a second that a node receives, and seconds.
        call: seconds of the call of an operation on a tiny tensor, forward and backward.
        speeds: measured speeds by kind of layer, which count instead of ``flops`` and ``memory_bandwidth``.
    """

    memory: float | str = 80 * GIB
    ranks_per_node: int = 8
    flops: float = 2e13
    memory_bandwidth: float = 1.5e12
    bandwidth: float = 2e11
    latency: float = 1e-5
    node_bandwidth: float = 5e10
    node_latency: float = 2e-5
    call: float = 2e-5
    speeds: Mapping[str, Speed] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "memory", bytes_of(self.memory))
        for name, value in vars(self).items():
            if name != "speeds" and not (isinstance(value, int | float) and value > 0):
                raise ValueError(f"Machine: {name}={value!r}; it has to be a positive number")

    @property
    def bytes_of_rank(self) -> float:
        """The memory of a rank, in bytes."""
        return bytes_of(self.memory)

    def seconds(self, kind: str, units: float, busy: int) -> float:
        """The time of some operations, or of some "bytes" that are touched, forward and backward.

        Args:
            busy: the number of ranks that compute at the same time.
        """
        if kind in self.speeds:
            return self.speeds[kind].seconds(units, busy)
        return _FORWARD_AND_BACKWARD * units / (self.memory_bandwidth if kind == "bytes" else self.flops)

    def transfer(self, received: float, ranks: int, exchanges: int = 1) -> float:
        """The seconds of exchanges among ranks that receive at most some bytes. Between nodes, all of it may travel."""
        if ranks < 2 or not exchanges:
            return 0.0
        within = exchanges * self.latency + received / self.bandwidth
        if ranks <= self.ranks_per_node:
            return within
        between = exchanges * self.node_latency + received * self.ranks_per_node / self.node_bandwidth
        return max(within, between)


def bytes_of(size: float | str) -> float:
    """The number of bytes in a text such as "64GiB" or "80 GB"; a number as it is.

    Raises:
        ValueError: for another text.
    """
    if not isinstance(size, str):
        return size
    match = re.fullmatch(r"([0-9.]+)\s*([A-Z]*)", size.strip().upper())
    if match is None or match[2] not in _UNITS:
        raise ValueError(f"Machine: memory={size!r}; write bytes, or a size such as '64GiB' or '80GB'")
    return float(match[1]) * _UNITS[match[2]]
