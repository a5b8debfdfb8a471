"""Statistics of the operators of this rank: bytes sent and received, and time waited."""

from __future__ import annotations

from dataclasses import dataclass

from distdl import _core


@dataclass(frozen=True)
class CommStats:
    """The calls of all operators of one name on this rank.

    Attributes:
        calls: how often such an operator was applied.
        messages: how many messages this rank sent in these calls.
        bytes_sent: how many bytes of tensors this rank sent.
        bytes_received: how many bytes of tensors this rank received.
        seconds_waited: how long the program stood still in these calls, in seconds: waiting for other ranks to agree,
            for messages, and for started operators.

    Messages are counted as if ranks sent each other directly what they need; MPI's collectives may cut and route them
    differently.
    """

    calls: int
    messages: int
    bytes_sent: int
    bytes_received: int
    seconds_waited: float


def comm_stats() -> dict[str, CommStats]:
    """The communication of this rank by operator, since the program began or since :func:`distdl.reset_comm_stats`.

    Adjoints are listed by themselves, as ``"Broadcast adjoint"``. No other rank has to call it.
    """
    fields = CommStats.__dataclass_fields__
    return {
        name: CommStats(**{field: getattr(sums, field) for field in fields})
        for name, sums in sorted(_core.statistics().items())
    }


def reset_comm_stats() -> None:
    """Set all counts of this rank to zero. No other rank has to call it."""
    _core.reset_statistics()
