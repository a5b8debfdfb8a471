"""Forward hooks on modules of a distributed model: they see this rank's blocks of a module's inputs and results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch

from distdl.models.capture.assignments import Hook
from distdl.models.capture.recording import ModuleBoundary, Value
from distdl.torch_compat.autograd import number_of_writes
from distdl.torch_compat.trees import tree_flatten, tree_unflatten


class HookFailures:
    """The first exception of a hook in a call, which its rank raises once the call has exchanged all it needs."""

    def __init__(self) -> None:
        self.first: Exception | None = None

    def raise_first(self) -> None:
        """Raise the exception of the first hook that failed, on this rank."""
        failure, self.first = self.first, None
        if failure is not None:
            raise failure


class ObservedCall:
    """A place in the program where the hooks of a module are called.

    Args:
        slots: of the values that the program keeps; hooks see None in place of other tensors.
        blocks: this rank's block of each value of which it has more.

    Attributes:
        reads: the slots of the tensors that hooks see.
        hooks: those on this module, now.
    """

    def __init__(
        self,
        call: ModuleBoundary,
        slots: Mapping[Value, int],
        blocks: Mapping[Value, tuple[slice, ...]],
        failures: HookFailures,
    ) -> None:
        leaves, self._structure = tree_flatten((call.args, dict(call.kwargs), call.results))
        self._leaves = [None if isinstance(leaf, Value) and leaf not in slots else leaf for leaf in leaves]
        values = [leaf for leaf in self._leaves if isinstance(leaf, Value)]
        self.reads, self._blocks = tuple(slots[value] for value in values), [*map(blocks.get, values)]
        self.path, self.is_after, self._failures = call.path, call.is_after, failures
        self.hooks: list[Hook] = []

    def choose(self, hooks: Iterable[Hook]) -> bool:
        """Whether any of all hooks belong to this call."""
        self.hooks = [hook for hook in hooks if (hook.path, hook.is_after) == (self.path, self.is_after)]
        return bool(self.hooks)

    def __call__(self, *tensors: torch.Tensor) -> tuple[()]:
        """Call the hooks, up to the first failure."""
        if self._failures.first is None:
            try:
                seen = [x if own is None else x[own] for x, own in zip(tensors, self._blocks, strict=True)]
                for hook in self.hooks:
                    self._call(hook, seen)
            except Exception as error:
                self._failures.first = error
        return ()

    def _call(self, hook: Hook, tensors: Sequence[torch.Tensor]) -> None:
        rest, writes = iter(tensors), [*map(number_of_writes, tensors)]
        leaves = [next(rest) if isinstance(leaf, Value) else leaf for leaf in self._leaves]
        args, kwargs, results = tree_unflatten(leaves, self._structure)
        arguments = (args, kwargs) if hook.takes_options else (args,)
        answer = hook.function(hook.module, *arguments, *([results] if self.is_after else []))
        if answer is not None or writes != [*map(number_of_writes, tensors)]:
            raise ValueError(
                f"distribute: a hook on {hook.path or 'the model'} changes what the model computes. A hook on a "
                "distributed model sees blocks, and can only look at them; register it on the original model, and "
                "distribute the model again"
            )
