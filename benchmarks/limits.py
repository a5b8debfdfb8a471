"""Why a goal is missed: what the limit is, how it was found, and what was tried. The trials are those of trials.py."""

from __future__ import annotations

from report import LARGE, SUMS, Row

LIMITS = {
    "call": """
        A call costs what Python, torch.nn.Module and torch's allocator take, and the vote of the ranks. Found by timing
        the parts (trials.py, call): a Broadcast that goes nowhere takes all but the vote, and the vote is a barrier.
        Tried: (1) a node of autograd made in C++ in place of torch::autograd::Function, 10 us less; (2) no hooks on
        layers that set nothing up, 6 to 9 us less; (3) no text, no look-up of counters, no saved tensor unless somebody
        asks for it, all dimensions of a region at once, 1 to 2 us less; (4) between two ranks a message in place of a
        collective, 1 us less. Of what is left, half is torch's own.
        """,
    "autograd": """
        The backward pass of torch.clone alone takes longer than the goal leaves. Found by timing it in the same turns
        (trials.py, call). Tried: as for a call. The adjoint without autograd costs what a forward call does.
        """,
    "fixed": """
        At 1 MiB, a twentieth of what MPI or torch.clone take is 2 to 6 us, less than a call's fixed cost; adjoints have
        autograd's as well. Found by the difference, which is about the same at 1 KiB. Tried: as for a call.
        """,
    "sum": """
        Whoever adds has to see the other's numbers: a sum of vectors that fit into the caches takes at least a message
        and an addition. Found by doing just that by hand (trials.py, all_sum). Tried: (1) half of the sum on each rank,
        then exchanged, which wins from 4 MiB on; (2) blocks of 32 KiB to 2 MiB, of which one is added while the next
        travels, no gain below 4 MiB; (3) everything on both ranks, which is what is done up to 2 MiB. Where MPI's
        reduction takes less than twice that, half of its time is out of reach with messages.
        """,
    "move": """
        The same messages as by hand, but into memory that is new to the call. Found by the difference, which is gone at
        64 MiB. Tried: (1) a pool of memory, without which this takes three to five times as long; (2) huge pages for
        it; (3) no buffer for regions that are contiguous. What is left is a few percent of a noisy machine.
        """,
    "unknown": "Not looked into.",
}


def limit(table: str, row: Row) -> str:
    """The name of the limit that a row which misses its goal runs into."""
    if table != "times":
        return "unknown"
    if row["bytes"] < LARGE:
        return "call" if row["direction"] == "forward" else "autograd"
    if (row["primitive"], row["direction"]) in SUMS:
        return "sum"
    if row["bytes"] == LARGE:
        return "fixed"
    return "move"
