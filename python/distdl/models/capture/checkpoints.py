"""Activation checkpoints in a recorded model."""

from __future__ import annotations

from collections.abc import Sequence

from torch.utils.checkpoint import CheckpointFunction

from distdl.models.capture.interception import FunctionClass
from distdl.models.capture.recording import Function
from distdl.models.capture.source_line import source_line
from distdl.models.capture.unrecorded import saved_tensors_hook
from distdl.torch_compat.autograd import inputs_of_checkpoint, is_checkpoint_hook


class Checkpoints:
    """Numbers the checkpoints in which calls stand."""

    def __init__(self) -> None:
        self._numbers: dict[object, int] = {}
        self._reentrant = 0
        self._outer_hook = saved_tensors_hook()

    def current(self) -> int:
        """The number of the innermost checkpoint; 0 for none. Checkpoints that are not reentrant set a hook."""
        hook = saved_tensors_hook()
        name = getattr(hook, "__qualname__", "")
        if is_checkpoint_hook(name):
            return self._number(hook)
        if hook not in (None, self._outer_hook) and not name.startswith("save_on_cpu"):
            raise NotImplementedError(
                f"the model changes what backward passes keep, by saved_tensors_hooks, at {source_line()}"
            )
        return self._reentrant

    def apply(self, function: FunctionClass, args: Sequence[object]) -> object:
        """The result of an autograd function of which torch makes checkpoints; NotImplemented for others."""
        if function is not CheckpointFunction:
            return inputs_of_checkpoint(function)
        run, _, *inputs = args
        assert callable(run)
        return self._run_reentrant(run, inputs)

    def _run_reentrant(self, run: Function, args: Sequence[object]) -> object:
        """Run the function of a reentrant checkpoint, with derivatives."""
        before, self._reentrant = self._reentrant, self._number(object())
        try:
            return run(*args)
        finally:
            self._reentrant = before

    def _number(self, checkpoint: object) -> int:
        return self._numbers.setdefault(checkpoint, len(self._numbers) + 1)
