"""Measure the speeds of a machine: of computation on its ranks, and of exchanges between them."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

import torch
import torch.nn.functional as F

from distdl import operators
from distdl.partitions.grid import Grid

_CALLS = 3  # of each trial; their median counts

Ones = Callable[..., torch.Tensor]
"""Makes a tensor of ones, of the dtype and on the device of the measurement."""
Trial = tuple[float, Callable[[], None]]
"""A step forward and backward, with the number of units that it computes forward."""


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
class MachineProfile:
    """Measured speeds of the ranks of a job.

    Attributes:
        speeds: of floating-point operations by kind of layer, and of bytes ("bytes").
        call: seconds of a call of a tiny tensor, forward and backward.
        latency: seconds of an exchange of tiny messages.
        bandwidth: bytes a second that each rank receives while all ranks receive.
    """

    ranks: int
    speeds: Mapping[str, Speed] = field(default_factory=dict)
    call: float = 0.0
    latency: float = 0.0
    bandwidth: float = 1.0

    def transfer(self, received: float) -> float:
        """The seconds of an exchange in which ranks receive at most some bytes."""
        return self.latency + received / self.bandwidth if self.ranks > 1 else 0.0


_known: dict[tuple[tuple[int, ...], torch.dtype, torch.device], MachineProfile] = {}


def measure(grid: Grid, dtype: torch.dtype, device: torch.device) -> MachineProfile:
    """The speeds of the workers of a grid, as worker 0 has measured them. Takes about two seconds once. Collective."""
    key = grid.world_ranks(), dtype, device
    if key not in _known:
        with torch.random.fork_rng(devices=[]), torch.enable_grad(), torch.inference_mode(False):
            _known[key] = _measured(grid.line(grid.ranks), partial(torch.ones, dtype=dtype, device=device))
    return _known[key]


def _measured(grid: Grid, make_ones: Ones) -> MachineProfile:
    trials = {kind: make(make_ones) for kind, make in _TRIALS.items()}
    speeds = {}
    for kind, (units, run) in trials.items():
        busy = [count for count in range(1, grid.size + 1) if grid.size % count == 0]
        taken = {count: _median(grid, run if grid.rank < count else lambda: None) for count in busy}
        speeds[kind] = Speed({count: units / seconds for count, seconds in taken.items()})
    small = make_ones(16, requires_grad=True)
    call = _median(grid, lambda: _backward(F.relu(small)), repeats=20) / 20
    latency, bandwidth = 0.0, 1.0
    if grid.size > 1:
        line = grid.reshaped((grid.size, 1))
        exchange = operators.repartition(line, grid.reshaped((1, grid.size)), preserve_batch=False)
        latency = _median(grid, lambda: exchange(make_ones(1, grid.size)), repeats=20) / 20
        large = make_ones(1024, 128 * grid.size)
        sent = large.numel() * large.element_size() * (grid.size - 1) / grid.size
        bandwidth = sent / max(_median(grid, lambda: exchange(large)) - latency, 1e-9)
    known = {kind: [*speed.known.items()] for kind, speed in speeds.items()}
    profile = {"speeds": known, "call": call, "latency": latency, "bandwidth": bandwidth}
    first = json.loads(grid.gather(json.dumps(profile).encode())[0])
    return MachineProfile(grid.size, {kind: Speed(dict(speed)) for kind, speed in first.pop("speeds").items()}, **first)


def _median(grid: Grid, run: Callable[[], object], repeats: int = 1) -> float:
    """The time of the slowest rank, after a first call."""
    run()
    taken = []
    for _ in range(_CALLS):
        grid.gather(b"")  # all begin together
        start = time.perf_counter()
        for _ in range(repeats):
            run()
        own = time.perf_counter() - start
        taken.append(max(map(float, grid.gather(repr(own).encode()))))
    return statistics.median(taken)


def _backward(y: torch.Tensor) -> None:
    y.sum().backward()
    if y.is_cuda:
        torch.cuda.synchronize(y.device)


def _convolution_trial(dims: int, groups: bool) -> Callable[[Ones], Trial]:
    size = {1: 16384, 2: 96, 3: 24}[dims]
    channels = 32

    def make(make_ones: Ones) -> Trial:
        x = make_ones(1, channels, *[size] * dims, requires_grad=True)
        weight = make_ones(channels, 1 if groups else channels, *[3] * dims, requires_grad=True)
        function = getattr(F, f"conv{dims}d")
        count = channels if groups else 1
        run = lambda: _backward(function(x, weight, padding=1, groups=count))  # noqa: E731
        return 2.0 * x.numel() * weight[0].numel(), run

    return make


def _product(make_ones: Ones) -> Trial:
    x, weight = make_ones(512, 512, requires_grad=True), make_ones(512, 512, requires_grad=True)
    return 2.0 * 512**3, lambda: _backward(F.linear(x, weight))


def _elements(make_ones: Ones) -> Trial:
    x = make_ones(1 << 20, requires_grad=True)
    return 2.0 * x.numel() * x.element_size(), lambda: _backward(F.relu(x))


_TRIALS = {
    "bytes": _elements,
    "product": _product,
    **{f"conv{dims}d": _convolution_trial(dims, groups=False) for dims in (1, 2, 3)},
    **{f"depthwise{dims}d": _convolution_trial(dims, groups=True) for dims in (1, 2, 3)},
}
"""The trials, by the kind of speed."""
