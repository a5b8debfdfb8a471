"""The sum of gradients over replicas, in buckets, while the backward pass computes further gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import torch

from distdl import _core, operators
from distdl.operators.dispatch import Operator
from distdl.partitions.grid import Grid

ParameterList = Sequence[torch.nn.Parameter]

_FIRST_BUCKET = 1 << 20  # bytes: as in torch's DistributedDataParallel, a small bucket goes first
_LARGEST_BUCKET = 25 << 20
_SMALLEST_BUCKET = 1 << 20
_BUCKET_COUNT = 5  # so that at most about a fifth of the bytes has to wait for the last gradient


class Bucket:
    """Parameters of the same dtype whose gradients travel as one message.

    The message ends with a number for each parameter, which is not 0 if any replica has a gradient of it.

    Args:
        parameters: in the expected order of their gradients.
        sum: sums tensors over the replicas.
    """

    def __init__(self, parameters: ParameterList, sum: Operator) -> None:
        self.parameters, self._sum = list(parameters), sum
        self._sizes = [parameter.numel() for parameter in self.parameters]
        self.bytes = self._message_length() * self.parameters[0].element_size()
        self.missing = len(self.parameters)  # gradients that the pass has still to compute
        self._message: torch.Tensor | None = None  # kept, because fresh memory costs more than the sum

    def _message_length(self) -> int:
        return sum(self._sizes) + len(self._sizes)

    def sum_gradients(self, scale: float, idle: bool) -> Exception | None:
        """Sum the gradients over all replicas, for :meth:`write_gradients`. Collective over the replicas.

        Args:
            scale: the factor of this replica's gradients.
            idle: whether this replica takes part without gradients.

        Returns:
            An error of this replica, which took part without gradients then.
        """
        if self._message is None:
            first = self.parameters[0]
            self._message = torch.empty(self._message_length(), dtype=first.dtype, device=first.device)
        problem = None
        try:
            self._fill(self._message, scale, idle)
        except Exception as error:  # the other replicas wait for a message
            problem = error
            self._message.zero_()
        self._message = self._sum(self._message)
        return problem

    def _fill(self, message: torch.Tensor, scale: float, idle: bool) -> None:
        *parts, flags = message.split([*self._sizes, len(self._sizes)])
        present = [parameter.grad is not None and not idle for parameter in self.parameters]
        flags.copy_(torch.tensor(present, device="cpu"))
        for parameter, part in zip(self.parameters, parts, strict=True):
            if parameter.grad is None or idle:
                part.zero_()
                continue
            if parameter.grad.layout is not torch.strided:
                raise TypeError(
                    f"DataParallel: a parameter of shape {list(parameter.shape)} has a gradient of the layout "
                    f"{parameter.grad.layout}; only dense gradients are summed, as an embedding with sparse=False has"
                )
            torch.mul(parameter.grad, scale, out=part.view(parameter.shape))

    def write_gradients(self) -> None:
        """Replace the gradients by their sums."""
        assert self._message is not None
        *sums, flags = self._message.split([*self._sizes, len(self._sizes)])
        all_used = all(parameter.grad is not None for parameter in self.parameters)
        used = [True] * len(sums) if all_used else [flag != 0 for flag in flags.tolist()]
        for parameter, total, is_used in zip(self.parameters, sums, used, strict=True):
            if parameter.grad is not None:
                parameter.grad.copy_(total.view(parameter.shape))
            elif is_used:
                parameter.grad = total.view(parameter.shape).clone()


def make_buckets(parameters: ParameterList, cap: int | None, replicas: Grid) -> list[Bucket]:
    """Buckets in the reverse order of the parameters, about the order in which gradients are computed.

    Args:
        parameters: parameters with elements on this rank.
        cap: the bytes of a bucket; None for a fifth of all, within limits.
        replicas: the ranks that have the same parameters, as a line on a communicator without other calls, such as
            those of layers over these ranks.

    Collective over the ranks of ``replicas``.
    """
    total = sum(parameter.nbytes for parameter in parameters)
    largest = min(_LARGEST_BUCKET, max(_SMALLEST_BUCKET, math.ceil(total / _BUCKET_COUNT))) if cap is None else cap
    limit, groups, kind, filled = min(largest, _FIRST_BUCKET), list[list[torch.nn.Parameter]](), None, 0
    for parameter in reversed(parameters):
        if not groups or (parameter.dtype, parameter.device) != kind or filled + parameter.nbytes > limit:
            limit = largest if groups else limit
            groups.append([])
            kind, filled = (parameter.dtype, parameter.device), 0
        groups[-1].append(parameter)
        filled += parameter.nbytes
    return [Bucket(group, operators.all_sum_reduce_among(replicas)) for group in groups]


class GradientSums:
    """Sums the buckets of a backward pass, in order, on a separate thread.

    In one queue with the communication of the model, replicas that use different parameters would wait for each other.

    Attributes:
        early_bytes: the bytes of the last pass whose sums were started before the pass ended.
    """

    def __init__(self, buckets: Sequence[Bucket]) -> None:
        self.buckets, self.early_bytes = list(buckets), 0
        self._thread = ThreadPoolExecutor(1, "distdl gradients", _core.set_patient, (True,))
        self._started: list[Future[Exception | None]] = []
        self._scale, self._pass_ended, self._failed = 1.0, True, False

    def begin(self, scale: float) -> None:
        """Prepare for the next backward pass, with this factor of gradients."""
        self._scale, self._pass_ended, self._failed, self._started = scale, False, False, []
        for bucket in self.buckets:
            bucket.missing = len(bucket.parameters)

    def count_gradient(self, bucket: Bucket) -> None:
        """Count a computed gradient, and start the buckets that are complete."""
        bucket.missing -= 1
        while len(self._started) < len(self.buckets) and self.buckets[len(self._started)].missing <= 0:
            self._start()

    def _start(self, idle: bool = False) -> None:
        if not self._started:
            self.early_bytes = 0
        bucket = self.buckets[len(self._started)]
        if not self._pass_ended:
            self.early_bytes += bucket.bytes
        self._started.append(self._thread.submit(self._sum_gradients, bucket, idle))

    def _sum_gradients(self, bucket: Bucket, idle: bool) -> Exception | None:
        if self._failed:
            return None  # the ranks are in different calls: a further sum would wait for a call of the next step
        self._failed = True
        with torch.no_grad():
            problem = bucket.sum_gradients(self._scale, idle)
        self._failed = False
        return problem

    def finish(self, idle: bool = False) -> Exception | None:
        """Start the remaining buckets, without gradients if idle, and wait for all. Raises errors of the sums.

        Returns:
            An error of this replica, which took part without gradients then.
        """
        self._pass_ended = True
        while len(self._started) < len(self.buckets):
            self._start(idle)
        started, self._started = self._started, []
        problems = [future.result() for future in started]
        return next((problem for problem in problems if problem is not None), None)

    @torch.no_grad()
    def write_gradients(self) -> None:
        """Replace the gradients by their sums, after all ranks have ended the pass."""
        for bucket in self.buckets:
            bucket.write_gradients()

    @property
    def bytes(self) -> int:
        return sum(bucket.bytes for bucket in self.buckets)
