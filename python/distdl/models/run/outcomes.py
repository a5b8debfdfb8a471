"""Compare what a model looks at in a call with what its program was made for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch

from distdl.models.capture.looks import text_of_outcome
from distdl.models.capture.recording import Look
from distdl.torch_compat.autograd import hide_saved_tensors, saved_tensors_hooks
from distdl.torch_compat.modes import active_modes, unseen_by_modes

_MOST_REPEATS = 4


class OtherOutcomeError(Exception):
    """A look has another outcome than in the program, on all ranks.

    Attributes:
        number: of the look.
        outcome: in this call.
    """

    def __init__(self, number: int, outcome: object) -> None:
        super().__init__(f"distribute: look {number} has the outcome {outcome!r}")
        self.number, self.outcome = number, outcome


class OutcomesOfCall:
    """Collects the outcomes that a call has found, until a program has all of them."""

    def __init__(self) -> None:
        self._last, self._repeats = -1, 0
        self._state = torch.get_rng_state()

    def of_first_looks(self, looks: Sequence[Look], other: OtherOutcomeError) -> tuple[object, ...]:
        """The outcomes of the first looks of this call. Its random numbers are drawn again.

        Raises:
            RuntimeError: if a look has found one outcome after another.
        """
        torch.set_rng_state(self._state)
        self._repeats += other.number <= self._last
        self._last = other.number
        if self._repeats > _MOST_REPEATS:
            raise RuntimeError(
                f"distribute: the value looked at in {looks[other.number].source} differs each time it is computed "
                "within one call (is it random outside of torch's generators?), so the model cannot be recorded"
            )
        return (*(look.outcome for look in looks[: other.number]), other.outcome)


class OutcomeCheck:
    """Looks at values, which every rank receives, and raises if the outcome is another one than in the program.

    An activation checkpoint, which is computed again in the backward pass, does so in the forward pass only.

    Args:
        number: of the look among those of the program.
        replications: functions that bring the tensors of the look to every rank. Calling is collective like they are.
    """

    only_once = True

    def __init__(self, number: int, look: Look, replications: Sequence[Callable[[torch.Tensor], torch.Tensor]]) -> None:
        self._number, self._look, self._replications = number, look, replications
        self._expected = text_of_outcome(look.outcome)

    @torch.no_grad()
    def __call__(self, *tensors: torch.Tensor) -> tuple[()]:
        wholes = [bring(x) for bring, x in zip(self._replications, tensors, strict=True)]
        outcome = self._look.outcome_of(dict(zip(self._look.values, wholes, strict=True)))
        if self._look.outcome is None or text_of_outcome(outcome) != self._expected:
            raise OtherOutcomeError(self._number, outcome)
        return ()


def is_counted() -> bool:
    """Whether hooks or modes, such as those of an activation checkpoint, count the tensors or operators of a call."""
    return saved_tensors_hooks() is not None or active_modes() > 0


@contextmanager
def rehearsal() -> Iterator[None]:
    """Let a program run for the outcomes of its looks alone. Random numbers are drawn again after it."""
    with torch.no_grad(), unseen_by_modes(), hide_saved_tensors(), torch.random.fork_rng(devices=[]):
        yield


@contextmanager
def undone(buffers: Sequence[torch.Tensor], in_any_case: bool) -> Iterator[None]:
    """Give buffers their values again after an exception, or in any case."""
    is_undone = in_any_case
    before = [(buffer, buffer.clone()) for buffer in buffers]
    try:
        yield
    except Exception:
        is_undone = True
        raise
    finally:
        if is_undone:
            with torch.no_grad():
                for buffer, values in before:
                    buffer.copy_(values)
