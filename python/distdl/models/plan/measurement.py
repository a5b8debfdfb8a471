"""Measure the speeds of a machine: of computation on its ranks, and of exchanges between them."""

from __future__ import annotations

import itertools
import json
import os
import statistics
import time
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F

from distdl import operators
from distdl.models.plan.machine import Machine, Speed
from distdl.partitions.grid import Grid

_CALLS = 3  # of each trial; their median counts

Ones = Callable[..., torch.Tensor]
"""Makes a tensor of ones, of the dtype and on the device of the measurement."""
Trial = tuple[float, Callable[[], None]]
"""A step forward and backward, with the number of units that it computes forward."""


_ASSUMED = {"node_bandwidth": 1.25e10, "node_latency": 5e-6}  # of a network, which a job on a node cannot measure

_known: dict[tuple[tuple[int, ...], torch.dtype, torch.device], Machine] = {}


def measure(grid: Grid, dtype: torch.dtype, device: torch.device) -> Machine:
    """The speeds of a grid's workers, as the first one of the fullest host has measured them.

    Takes about two seconds once. Collective.
    """
    key = grid.world_ranks(), dtype, device
    if key not in _known:
        with torch.random.fork_rng(devices=[]), torch.enable_grad(), torch.inference_mode(False):
            _known[key] = _measured(grid.line(grid.ranks), partial(torch.ones, dtype=dtype, device=device))
    return _known[key]


def _measured(grid: Grid, make_ones: Ones) -> Machine:
    trials = {kind: make(make_ones) for kind, make in _TRIALS.items()}
    speeds = {}
    for kind, (units, run) in trials.items():
        busy = [count for count in range(1, grid.size + 1) if grid.size % count == 0]
        taken = {count: _median(grid, run if grid.rank < count else lambda: None) for count in busy}
        speeds[kind] = Speed({count: units / seconds for count, seconds in taken.items()})
    small = make_ones(16, requires_grad=True)
    call = _median(grid, lambda: _backward(F.relu(small)), repeats=20) / 20
    nodes = [text.decode() for text in grid.gather(b"%d" % grid.constructing_ranks().host_exchange().host)]
    in_node, cores = max(map(nodes.count, nodes)), os.cpu_count() or 1
    in_order = in_node if len([*itertools.groupby(nodes)]) == len(set(nodes)) else 1  # ranks that follow each other
    touched = _bytes_a_second(speeds)
    latency, bandwidth = 1e-6, touched / 4  # a copy of a process in another
    node = [rank for rank, other in zip(grid.ranks, nodes, strict=True) if other == nodes[grid.rank]]
    if in_node > 1:
        latency, bandwidth = _of_messages(grid, grid.line(node), make_ones)
    between = dict(_ASSUMED)
    if len(set(nodes)) > 1:
        between["node_latency"], received = _of_messages(grid, grid, make_ones)
        between["node_bandwidth"] = received * in_order
    profile: dict[str, object] = {
        "memory": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // (in_node if grid.size > 1 else cores),
        "ranks_per_node": in_order if len(set(nodes)) > 1 else max(in_node, cores),
        "call": call, "latency": latency, "bandwidth": bandwidth, "memory_bandwidth": touched,
        "flops": 3 * speeds["product"].known[1],
    }  # fmt: skip
    known = {kind: [*speed.known.items()] for kind, speed in speeds.items()}
    fullest = nodes.index(max(nodes, key=nodes.count))
    first = json.loads(grid.gather(json.dumps(profile | between | {"speeds": known}).encode())[fullest])
    return Machine(speeds={kind: Speed(dict(speed)) for kind, speed in first.pop("speeds").items()}, **first)


def _of_messages(grid: Grid, part: Grid, make_ones: Ones) -> tuple[float, float]:
    """The latency, and the bytes a second that a rank receives, of an exchange among this part of the workers."""
    size = part.size
    exchange = operators.repartition(part.reshaped((size, 1)), part.reshaped((1, size)), preserve_batch=False)
    latency = _median(grid, lambda: exchange(make_ones(1, size)), repeats=20) / 20
    widest = -(-256 // size) * size  # blocks of the same size among many ranks
    small, large = (make_ones(rows, widest) for rows in (1024, 8192))
    sent = (large.numel() - small.numel()) * large.element_size() * (size - 1) / size
    longer = _median(grid, lambda: exchange(large)) - _median(grid, lambda: exchange(small))
    return latency, max(sent, 1) / max(longer, 1e-9)


def _bytes_a_second(speeds: dict[str, Speed]) -> float:
    """Bytes that a rank touches a second; the speed counts those of a forward pass."""
    return 3 * speeds["bytes"].known[1]


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
