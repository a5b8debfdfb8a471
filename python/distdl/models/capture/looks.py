"""Looks at values that are known in a call only, such as ``if x.max() > 5``.

A recording holds for one outcome of each look. A program compares the outcomes of its call with those of its recording,
and another program computes the call if they differ.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace

import torch

from distdl.models.capture.listing import digest_of
from distdl.models.capture.recording import Arguments, Function, Look, Options
from distdl.models.capture.source_line import source_line
from distdl.models.capture.tensors import RecordedTensors
from distdl.torch_compat.trees import tree_leaves, tree_map_only


class OpenLookError(BaseException):  # which the model does not catch
    """The recording cannot go on: the outcome of its last look is not known."""


class Looks:
    """The looks of a recording.

    Args:
        outcomes: of the first looks, as a call has found them.
        guesses: whether a look is expected to have the outcome of an earlier one on the same line. So a model whose
            layers all look is not recorded once for each layer.
        at_masks: whether masks are looked at, so that the number of the elements that they select is known.
        at_all_values: whether looks are made at all values, and not only at those that buffers alone determine.
    """

    def __init__(
        self, outcomes: Sequence[object] = (), guesses: bool = True, at_masks: bool = False, at_all_values: bool = True
    ) -> None:
        self._outcomes, self._guesses, self.at_masks, self.at_all_values = outcomes, guesses, at_masks, at_all_values
        self.made: list[Look] = []

    def begin(self) -> list[Look]:
        """Begin a recording. Returns the list of its looks, which grows while it is made."""
        self.made = []
        return self.made

    @property
    def has_guessed(self) -> bool:
        """Whether the outcome of any look is a guess."""
        return sum(look.outcome is not None for look in self.made) > len(self._outcomes)

    def outcome(self, tensors: RecordedTensors, function: Function, args: Arguments, kwargs: Options) -> object:
        """The outcome of a look.

        Args:
            tensors: of the recording, which goes on while this runs.

        Raises:
            OpenLookError: if it is not known.
        """
        with torch.no_grad():
            copies = tree_map_only(torch.Tensor, torch.clone, (args, dict(kwargs)))
        own, named = tree_map_only(torch.Tensor, tensors.value, copies)
        look = Look(function, own, named, source_line())
        number = len(self.made)
        if number < len(self._outcomes):
            outcome = self._outcomes[number]
        elif (outcome := self._guess(look)) is None:
            self.made.append(look)
            raise OpenLookError
        self.made.append(replace(look, outcome=outcome))
        return outcome

    def _guess(self, look: Look) -> object:
        """The outcome of the last look on this line, at most once for each known outcome of that line; else None."""
        alike = [other for other in self.made if (other.source, other.function) == (look.source, look.function)]
        known = [other for other in self.made[: len(self._outcomes)] if other in alike]
        may_guess = self._guesses and len(alike) < 2 * len(known) and isinstance(known[-1].outcome, int)
        return alike[-1].outcome if may_guess else None


def text_of_outcome(outcome: object) -> str:
    """A text that is the same for the same outcomes, also if they are no numbers."""
    return " ".join(map(_text_of_leaf, tree_leaves(outcome)))


def _text_of_leaf(leaf: object) -> str:
    if isinstance(leaf, torch.Tensor):
        return digest_of(leaf)
    if not hasattr(leaf, "tobytes"):
        return repr(leaf)
    return f"{getattr(leaf, 'shape', ())} {hashlib.sha256(leaf.tobytes()).hexdigest()[:16]}"
