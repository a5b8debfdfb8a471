"""Keep the programs of a model."""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Hashable, Sequence

from distdl.models.capture.looks import text_of_outcome
from distdl.models.capture.source_line import source_line
from distdl.models.run.program import Program
from distdl.torch_compat.trees import tree_leaves

_MOST_OPERATIONS = 1 << 15
"""The most in all programs that a model keeps, about 1 GiB. Two programs stay in any case."""
_MANY_OUTCOMES = 16
_MANY_NUMBERS = 4
_MOST_COUNTED = 1000
_WRITTEN_NUMBER = r"(?<![\w.])-?\d[\d.]*(e[-+]?\d+)?"

Kind = tuple[Hashable, str, str]
"""Shapes and modes, arguments that are no tensors, and assigned attributes: all that a program depends on."""


def _text_of_many(programs: Sequence[Program]) -> str:
    looks = {look.source: {text_of_outcome(other.outcome) for each in programs for other in each.looks
                           if other.source == look.source} for look in programs[-1].looks}  # fmt: skip
    source, outcomes = max(looks.items(), key=lambda item: len(item[1]))
    return (
        f"distribute: the model looks at values at {source}, and calls have found {len(outcomes)} outcomes. It is "
        "recorded again for each. Use a tensor instead of the number, or torch.where instead of the branch, and one "
        "recording serves all"
    )


def _forget_first(counted: Counter[Hashable] | dict[Hashable, set[str]]) -> None:
    if len(counted) == _MOST_COUNTED:
        counted.pop(next(iter(counted)))


class ProgramCache:
    """Programs by the kinds of their calls, such as shapes and modes. Those that were not used for longest go first."""

    def __init__(self) -> None:
        self._programs: dict[Kind, list[Program]] = {}  # both in the order of their last uses
        self._alike: dict[Hashable, set[str]] = {}  # the texts of kinds that differ in numbers alone
        self._outcomes: Counter[Hashable] = Counter()  # the number of programs that were made for each kind

    def find(self, kind: Kind, outcomes: Sequence[object] = ()) -> Program | None:
        """The program of this kind that was used last, of those whose looks at values begin with these outcomes."""
        of_kind = self._programs.pop(kind, None)
        if of_kind is None:
            return None
        self._programs[kind] = of_kind
        texts = [*map(text_of_outcome, outcomes)]
        for program in reversed(of_kind):
            if [text_of_outcome(look.outcome) for look in program.looks[: len(texts)]] == texts:
                of_kind.remove(program)
                of_kind.append(program)
                return program
        return None

    def keep(self, kind: Kind, program: Program, call: object) -> None:
        """Keep the program of a call, which is in use."""
        of_kind = self._programs.setdefault(kind, [])
        of_kind.append(program)
        if len(of_kind) == 1:
            self._warn_of_numbers(kind, call)
        if program.looks:
            _forget_first(self._outcomes)
            self._outcomes[kind] += 1
            if self._outcomes[kind] == _MANY_OUTCOMES:
                warnings.warn(_text_of_many(of_kind), stacklevel=2)
        while len(self) > 2 and sum(each.count() for own in self._programs.values() for each in own) > _MOST_OPERATIONS:
            first = next(iter(self._programs))
            del self._programs[first][0]
            if not self._programs[first]:
                del self._programs[first]

    def _warn_of_numbers(self, kind: Kind, call: object) -> None:
        """Warn of numbers that have other values in each call, once for each kind of call."""
        state, *texts = kind
        numbers = [repr(leaf) for leaf in tree_leaves(call) if type(leaf) in (int, float)]
        _forget_first(self._alike)
        alike = self._alike.setdefault((state, re.sub(_WRITTEN_NUMBER, "0", str(texts))), set())
        if str(texts) in alike or len(alike) == _MANY_NUMBERS:
            return
        alike.add(str(texts))
        if len(alike) == _MANY_NUMBERS:
            last = ", ".join(filter(None, (*numbers, texts[-1])))
            warnings.warn(
                f"distribute: {_MANY_NUMBERS} calls with other numbers were each recorded and planned, the last with "
                f"{last} at {source_line()}. If the model only computes with a number, pass torch.tensor(number) as an "
                "argument",
                stacklevel=2,
            )

    def __len__(self) -> int:
        return sum(map(len, self._programs.values()))

    def clear(self) -> None:
        """Forget all programs."""
        self._programs.clear()
        self._alike.clear()
        self._outcomes.clear()
