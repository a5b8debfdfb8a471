"""The sum of gradients over replicas, in buckets, while the backward pass computes further gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import torch

from distdl import _core, operators
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

    def add_up(self, scale: float, idle: bool) -> Exception | None:
        """Sum the gradients over all replicas, for :meth:`take`. Collective over the replicas.

        Args:
            scale: what this replica's gradients are multiplied by.
            idle: whether this replica takes part without gradients.

        Returns:
            Why this replica had to take part without its gradients, if it had to.
        """
        if self._message is None:
            first = self.parameters[0]
            self._message = torch.empty(self._total(), dtype=first.dtype, device=first.device)
        problem = None
        try:
            self._fill(self._message, scale, idle)
        except Exception as error:  # the other replicas wait for a message
            problem = error
            self._message.zero_()
        self._message = self._sum(self._message)
        return problem

    def _fill(self, message: torch.Tensor, scale: float, idle: bool) -> None:
        """Write this replica's gradients into its message."""
        *own, flags = message.split([*self._sizes, len(self._sizes)])
        present = [parameter.grad is not None and not idle for parameter in self.parameters]
        flags.copy_(torch.tensor(present, device="cpu"))
        for parameter, part in zip(self.parameters, own, strict=True):
            if parameter.grad is None or idle:
                part.zero_()
                continue
            if parameter.grad.layout is not torch.strided:
                raise TypeError(
                    f"DataParallel: a parameter of shape {list(parameter.shape)} has a gradient of the layout "
                    f"{parameter.grad.layout}; only dense ones are summed, as an embedding with sparse=False has"
                )
            torch.mul(parameter.grad, scale, out=part.view(parameter.shape))

    def take(self) -> None:
        """Put the sums in the place of the gradients."""
        assert self._message is not None
        *sums, flags = self._message.split([*self._sizes, len(self._sizes)])
        all_used = all(parameter.grad is not None for parameter in self.parameters)
        used = [True] * len(sums) if all_used else [flag != 0 for flag in flags.tolist()]
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
        replicas: the ranks that have the same parameters, as a line on which nothing else is called: the model may have
            layers over these ranks, whose calls come in another order.

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
        self._thread = ThreadPoolExecutor(1, "distdl gradients", _core.set_patient, (True,))
        self._started: list[Future[Exception | None]] = []
        self._scale, self._over, self._failed = 1.0, True, False

    def begin(self, scale: float) -> None:
        """Prepare for the next backward pass, in which gradients are multiplied by ``scale``."""
        self._scale, self._over, self._failed, self._started = scale, False, False, []
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

    def _add_up(self, bucket: Bucket, idle: bool) -> Exception | None:
        if self._failed:
            return (
                None  # the ranks are in different calls, so that a further sum would wait for a call of the next step
            )
        self._failed = True
        with torch.no_grad():
            problem = bucket.add_up(self._scale, idle)
        self._failed = False
        return problem

    def finish(self, idle: bool = False) -> Exception | None:
        """Start the other buckets, and wait for all of them. What a sum raised is raised here.

        Args:
            idle: whether the other buckets take part without this replica's gradients.

        Returns:
            Why gradients of this replica are missing in the sums, if some are.
        """
        self._over = True
        while len(self._started) < len(self.buckets):
            self._start(idle)
        started, self._started = self._started, []
        problems = [one.result() for one in started]
        return next((problem for problem in problems if problem is not None), None)

    @torch.no_grad()
    def take(self) -> None:
        """Put the sums in the place of the gradients, once all ranks have ended the pass.

        Not before: after an exception the program may have cleared its gradients meanwhile.
        """
        for bucket in self.buckets:
            bucket.take()

    @property
    def bytes(self) -> int:
        """The bytes of all buckets."""
        return sum(bucket.bytes for bucket in self.buckets)
