"""Exceptions of computations that no other rank repeats, such as an index that is out of range in one block.

All ranks raise them at the end of the call. Until then their rank goes on with zeros, as the others wait for it in
exchanges.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

import torch

from distdl.models.capture.recording import Node, Run


class Failure(NamedTuple):
    """An exception, and the number of the node's result: one process would raise that of the lowest number."""

    number: int
    error: Exception


_of_call: ContextVar[list[Failure] | None] = ContextVar("_of_call", default=None)


@contextmanager
def deferred() -> Iterator[list[Failure]]:
    """Keep the exceptions of computations in a list, which the body has to raise on all ranks."""
    failures: list[Failure] = []
    token = _of_call.set(failures)
    try:
        yield failures
    finally:
        _of_call.reset(token)


def defer(error: Exception, node: Node, instead: Callable[[], object]) -> object:
    """The result of ``instead``, if the error of a node can be raised later. Otherwise raises it."""
    failures = _of_call.get()
    if failures is None:
        raise error
    try:
        result = instead()
    except Exception:
        raise error from None
    failures.append(Failure(max(value.number for value in node.outputs), _located(error, node)))
    return result


def defer_to_end(error: Exception) -> None:
    """Let all ranks raise an error that comes after all nodes; raises it where no other rank waits."""
    failures = _of_call.get()
    if failures is None:
        raise error
    failures.append(Failure(sys.maxsize, error))


def deferring(run: Run, node: Node) -> Run:
    """A computation of tensors that computes with zeros if it fails."""

    def call(*tensors: torch.Tensor) -> object:
        try:
            return run(*tensors)
        except Exception as error:
            return defer(error, node, lambda: run(*map(zeros_like, tensors)))

    return call


def zeros_like(tensor: torch.Tensor) -> torch.Tensor:
    """Zeros that require gradients where a tensor does."""
    return torch.zeros_like(tensor.detach()).requires_grad_(tensor.requires_grad)


def _located(error: Exception, node: Node) -> Exception:
    """The error with the line of the program."""
    text = str(error)
    if node.source in text:
        return error
    try:
        located = type(error)(f"{node.key}: {text}, at {node.source}")
    except Exception:  # its class takes other arguments
        located = RuntimeError(f"{node.key}: {type(error).__name__}: {text}, at {node.source}")
    located.__cause__ = error
    return located
