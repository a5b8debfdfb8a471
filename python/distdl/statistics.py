"""Statistics of the operators of this rank: bytes sent and received, and time waited."""

from __future__ import annotations

from dataclasses import dataclass

from distdl import _core


@dataclass(frozen=True)
class CommStats:
    """The calls of all operators of one name on this rank, or of ``save``, ``load`` or ``write_block``.

    Attributes:
        calls: the number of calls.
        messages: the number of messages that this rank sent, as if ranks sent them directly to each other.
        bytes_sent, bytes_received: bytes of tensors that this rank sent and received.
        seconds_waited: seconds of waiting for the agreement of other ranks, for messages, and for started operators.
    """

    calls: int
    messages: int
    bytes_sent: int
    bytes_received: int
    seconds_waited: float


def comm_stats() -> dict[str, CommStats]:
    """The communication of this rank by operator, since the start or :func:`distdl.reset_comm_stats`.

    Adjoints are separate, such as ``"Broadcast adjoint"``. Under ``"save"``, ``"load"`` and ``"write_block"`` is what
    these functions send of blocks. No other rank has to call it.
    """
    fields = CommStats.__dataclass_fields__
    return {
        name: CommStats(**{field: getattr(sums, field) for field in fields})
        for name, sums in sorted(_core.statistics().items())
    }


def reset_comm_stats() -> None:
    """Set all counts of this rank to zero. No other rank has to call it."""
    _core.reset_statistics()
