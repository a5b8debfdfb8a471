"""The sum of gradients over replicas, in buckets, while the backward pass computes further gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import torch

from distdl import operators
from distdl.collective.grid import Grid
from distdl.operators.dispatch import Operator

Parameters = Sequence[torch.nn.Parameter]

_FIRST = 1 << 20  # bytes: as in torch's DistributedDataParallel, a small bucket goes first
_LARGEST = 25 << 20
_SMALLEST = 1 << 20
_BUCKETS = 5  # so that at most about a fifth of the bytes has to wait for the last gradient


class Bucket:
    """Parameters of one dtype whose gradients travel as one message.

    The message ends with a number for each parameter, which is not 0 if any replica has a gradient of it.

    Args:
        parameters: in the order in which their gradients are expected.
        sum: adds tensors up over the replicas.
    """

    def __init__(self, parameters: Parameters, sum: Operator) -> None:
        self.parameters, self._sum = list(parameters), sum
        self._sizes = [parameter.numel() for parameter in self.parameters]
        self.bytes = self._total() * self.parameters[0].element_size()
        self.missing = len(self.parameters)  # gradients that the pass has not computed yet
        self._message: torch.Tensor | None = None  # kept, because fresh memory costs more than what is written to it

    def _total(self) -> int:
        return sum(self._sizes) + len(self._sizes)

    def add_up(self, scale: float, idle: bool) -> None:
        """Put the sum over all replicas in the place of the gradients. Collective over the replicas.

        Args:
            scale: what this replica's gradients are multiplied by.
            idle: whether this replica takes part without gradients, and keeps those that it has.
        """
        if self._message is None:
            first = self.parameters[0]
            self._message = torch.empty(self._total(), dtype=first.dtype, device=first.device)
        message = self._message
        *own, flags = message.split([*self._sizes, len(self._sizes)])
        present = [parameter.grad is not None and not idle for parameter in self.parameters]
        flags.copy_(torch.tensor(present, device="cpu"))
        for parameter, part, is_present in zip(self.parameters, own, present, strict=True):
            if is_present and parameter.grad is not None:
                torch.mul(parameter.grad, scale, out=part.view(parameter.shape))
            else:
                part.zero_()
        result = self._sum(message)
        if idle:
            return
        *sums, flags = result.split([*self._sizes, len(self._sizes)])
        used = present if all(present) else [flag != 0 for flag in flags.tolist()]
        for parameter, total, is_used in zip(self.parameters, sums, used, strict=True):
            if parameter.grad is not None:
                parameter.grad.copy_(total.view(parameter.shape))
            elif is_used:
                parameter.grad = total.view(parameter.shape).clone()


def bucketed(parameters: Parameters, cap: int | None, replicas: Grid) -> list[Bucket]:
    """Buckets in the reverse order of the parameters, which is about that of their gradients.

    Args:
        parameters: with elements on this rank.
        cap: the bytes of a bucket; None for a fifth of all, within limits.
        replicas: the ranks that have the same parameters.

    Collective over the ranks of ``replicas``.
    """
    whole = sum(parameter.nbytes for parameter in parameters)
    largest = min(_LARGEST, max(_SMALLEST, math.ceil(whole / _BUCKETS))) if cap is None else cap
    limit, groups, kind, filled = min(largest, _FIRST), list[list[torch.nn.Parameter]](), None, 0
    for parameter in reversed(parameters):
        if not groups or (parameter.dtype, parameter.device) != kind or filled + parameter.nbytes > limit:
            limit = largest if groups else limit
            groups.append([])
            kind, filled = (parameter.dtype, parameter.device), 0
        groups[-1].append(parameter)
        filled += parameter.nbytes
    return [Bucket(group, operators.all_sum_reduce_among(replicas)) for group in groups]


class GradientSums:
    """Adds up the buckets of a backward pass, in order, on a thread of their own.

    The sums must not wait in one queue with the communication of the model: if replicas use different parameters, their
    orders of the two kinds differ, and the queues would wait for each other.

    Args:
        buckets: of this rank.

    Attributes:
        early: the bytes of the last pass whose sums were started before the pass ended.
    """

    def __init__(self, buckets: Sequence[Bucket]) -> None:
        self.buckets, self.early = list(buckets), 0
        self._thread = ThreadPoolExecutor(1, "distdl gradients")
        self._started: list[Future[None]] = []
        self._scale, self._over = 1.0, True

    def begin(self, scale: float) -> None:
        """Prepare for the next backward pass, in which gradients are multiplied by ``scale``."""
        self._scale, self._over, self._started = scale, False, []
        for bucket in self.buckets:
            bucket.missing = len(bucket.parameters)

    def ready(self, bucket: Bucket) -> None:
        """Count a gradient that the pass has computed, and start the buckets whose turn it is."""
        bucket.missing -= 1
        while len(self._started) < len(self.buckets) and self.buckets[len(self._started)].missing <= 0:
            self._start()

    def _start(self, idle: bool = False) -> None:
        if not self._started:
            self.early = 0
        bucket = self.buckets[len(self._started)]
        if not self._over:
            self.early += bucket.bytes
        self._started.append(self._thread.submit(self._add_up, bucket, idle))

    def _add_up(self, bucket: Bucket, idle: bool) -> None:
        with torch.no_grad():
            bucket.add_up(self._scale, idle)

    def finish(self, idle: bool = False) -> None:
        """Start the other buckets, and wait for all of them. What a sum raised is raised here."""
        self._over = True
        while len(self._started) < len(self.buckets):
            self._start(idle)
        started, self._started = self._started, []
        for one in started:
            one.result()

    @property
    def bytes(self) -> int:
        """Of all buckets."""
        return sum(bucket.bytes for bucket in self.buckets)
