"""Raise on all ranks what a computation has raised on one of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch

from distdl import _core
from distdl.models.capture.recording import Node
from distdl.models.operations.failures import Failure, defer, deferred, zeros_like
from distdl.models.operations.placement import Blocks, Placement
from distdl.models.run.outcomes import OtherOutcomeError
from distdl.partitions.comparison import View, differing_views, error_for_all, refuse_difference

_COMPUTED = View("distribute")


class Substitute:
    """Zeros in place of the results of a computation that has failed.

    Args:
        placements: of the results.
        rank: this rank.
    """

    def __init__(self, node: Node, run: Callable[..., object], placements: Sequence[Placement], rank: int) -> None:
        self._node, self._run = node, run
        self._shapes = [place.local_shape(rank) if isinstance(place, Blocks) else value.shape
                        for value, place in zip(node.outputs, placements, strict=True)]  # fmt: skip

    def __call__(self, error: Exception, tensors: Sequence[object]) -> object:
        """The zeros; raises the error where no other rank waits for it."""
        return defer(error, self._node, lambda: self._zeros([x for x in tensors if isinstance(x, torch.Tensor)]))

    def _zeros(self, tensors: Sequence[torch.Tensor]) -> object:
        try:
            return self._run(*map(zeros_like, tensors))  # of the dtypes of this call
        except Exception:
            asks = torch.is_grad_enabled() and any(x.requires_grad for x in tensors)
            device = tensors[0].device if tensors else None
            values = zip(self._node.outputs, self._shapes, strict=True)
            zeros = [torch.zeros(shape, dtype=value.dtype, device=device) for value, shape in values]
            for value, result in zip(self._node.outputs, zeros, strict=True):
                result.requires_grad_(asks and value.is_differentiable)
            return zeros if len(zeros) > 1 else zeros[0]


class CallFailures:
    """Tells all ranks at the end of a call whether a computation has failed on any of them.

    Args:
        exchange: of the ranks that construct the model. Calling is collective over them.
    """

    def __init__(self, exchange: _core.HostExchange) -> None:
        self._exchange = exchange

    @contextmanager
    def raised_together(self) -> Iterator[None]:
        """Let all ranks raise what the body raises on any of them, where no other rank waits for it."""
        with deferred() as failures:
            try:
                yield
            except OtherOutcomeError:  # of all ranks, perhaps for what a failure has left
                self._raise_first(failures)
                raise
            self._raise_first(failures)

    def _raise_first(self, failures: Sequence[Failure]) -> None:
        """Raise on all ranks what one process would raise first; without the structure check, on this rank alone."""
        own = min(failures, default=None, key=lambda failure: failure.number)
        if not _core.structure_check():
            if own is not None:
                raise own.error
            return
        error, place = (None, 0) if own is None else (error_for_all("distribute", {}, own.error), own.number)
        views = differing_views("distribute", self._exchange, _COMPUTED, error, place)
        if views is not None:
            refuse_difference(views)
