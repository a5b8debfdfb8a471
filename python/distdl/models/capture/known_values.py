"""Values that depend on no input, parameter or buffer: they are known while the model is recorded.

A model may look at them, and index with them. Tables that a function keeps for its next calls (``functools.cache``) are
computed with values in the first place, so that they are right wherever they are used.
"""

from __future__ import annotations

import contextlib
import copy
import math
import warnings
from collections.abc import Callable, Mapping
from typing import TypeVar

import torch

from distdl.models.capture.looks import Looks
from distdl.models.capture.recording import Arguments, Function, Node, Options, Recording, Value
from distdl.models.capture.refused_looks import OF_VALUES, TEXT, UnknownValuesError
from distdl.models.capture.source_line import source_line
from distdl.models.capture.tensors import RecordedTensors
from distdl.models.capture.texts_of_tensors import TEXTS, Use, text_without_values, use_of_text
from distdl.torch_compat.fake import FakeTensor
from distdl.torch_compat.modes import without_functions, without_modes
from distdl.torch_compat.trees import tree_leaves, tree_map_only

Result = TypeVar("Result")
_MOST_ELEMENTS = 1 << 24  # of a value that is computed on every rank
_OF_SHAPES = {"full_like", "new_full", "new_ones", "new_zeros", "ones_like", "zeros_like"}
"""Functions that need no values of the tensor that they are passed."""
_WHOLE_NUMBERS = (torch.int64, torch.int32, torch.int16, torch.int8)  # uint8 is a mask
_WITH_SIZES = {
    "as_strided", "chunk", "expand", "interpolate", "narrow", "new_empty", "new_full", "new_ones", "new_zeros", "pad",
    "repeat", "reshape", "roll", "select", "split", "tile", "topk", "unflatten", "unfold", "view",
}  # fmt: skip
"""Functions that take tensors with a single number as sizes."""


class KnownValues:
    """The values of a recording that depend on constants only, and on buffers if these are passed.

    Args:
        tensors: the tensors of the recording, while it is made.
        buffers: of the model, by name; those that it writes do not count.
        looks: finds the outcomes of looks at other values, or of buffers alone; None without.
    """

    def __init__(
        self,
        recording: Recording,
        tensors: RecordedTensors | None = None,
        buffers: Mapping[str, torch.Tensor] | None = None,
        looks: Looks | None = None,
    ) -> None:
        self._recording, self._tensors, self._looks = recording, tensors, looks
        self._computed: dict[Value, torch.Tensor | None] = {}
        written = recording.written.keys() | {name for node in recording.nodes for name in node.buffers.values()}
        self._buffers = {name: buffer for name, buffer in (buffers or {}).items() if name not in written}

    def look(self, function: Function, key: str, args: Arguments, kwargs: dict[str, object]) -> object:
        """The result of a call that looks at known values, or whose shape they determine; else NotImplemented.

        Tensors of known values have values, as constants of the model have them.
        """
        name = getattr(function, "__name__", "")
        if name in TEXTS:
            return self._text(function, name, args, kwargs)
        if key in _WITH_SIZES and (tensors := list(filter(self._is_size, tree_leaves((args[1:], kwargs))))):
            numbers = {id(x): int(x) for x in tensors}
            own, named = tree_map_only(torch.Tensor, lambda x: numbers.get(id(x), x), (args[1:], kwargs))
            return function(args[0], *own, **named)
        if key in ("getitem", "setitem") and (index := self._with_numbers(args[1])) is not args[1]:
            return function(args[0], index, *args[2:])
        is_selection = key == "masked_select" and len(args) == 2
        if is_selection and (self._may_look_at_mask(args[1]) or self._known_mask(args[1]) is not None):
            x, mask = torch.broadcast_tensors(*args)
            if (places := self._numbers_of(mask)) is not None:
                return x[places]
        if name not in OF_VALUES or (name == "where" and len(args) + len(kwargs) > 1):
            return NotImplemented
        result = self.call(function, args, kwargs)
        if result is not NotImplemented:
            return result
        if name != "repeat_interleave":
            return self._outcome(function, args, kwargs)
        if len(args) < 2 or "output_size" in kwargs or not isinstance(args[1], torch.Tensor):
            return result
        if (repeats := self.of_tensor(args[1])) is not None:
            return function(*args, **kwargs, output_size=int(really(repeats.sum, (), {})))
        return function(*args, **kwargs, output_size=int(args[1].sum())) if self._may_look_at(args[1]) else result

    def _is_size(self, x: object) -> bool:
        """Whether an argument is a tensor with a single whole number, which is known or may be looked at."""
        if not isinstance(x, torch.Tensor) or x.dim() or x.is_floating_point():
            return False
        return self.of_tensor(x) is not None or self._may_look_at(x)

    def _text(self, function: Function, name: str, args: Arguments, kwargs: dict[str, object]) -> object:
        """The text of a tensor.

        Raises:
            UnknownValuesError: if its values are not known, the text may decide, and no looks are made.
        """
        result = self.call(function, args, kwargs)
        if result is not NotImplemented:
            return result
        use = use_of_text()
        if use is Use.MESSAGE or (use is Use.RAISED and not self._may_look_at(args)):
            return text_without_values(args[0])
        outcome = self._outcome(TEXTS[name], args, {})
        if outcome is NotImplemented:
            raise UnknownValuesError(TEXT, source_line())
        return outcome

    def _outcome(self, function: Function, args: Arguments, kwargs: dict[str, object]) -> object:
        """The outcome of a look at values of this call; NotImplemented if they may not be looked at."""
        has_tensors = any(isinstance(leaf, FakeTensor) for leaf in tree_leaves((args, kwargs)))
        if self._looks is None or self._tensors is None or not (has_tensors and self._may_look_at((args, kwargs))):
            return NotImplemented
        outcome = self._looks.outcome(self._tensors, function, args, kwargs)
        return really(copy.deepcopy, (outcome,), {})  # the model may change it

    def _may_look_at(self, arguments: object) -> bool:
        """Whether calls may look at the tensors among arguments: in any case at those that buffers alone determine."""
        if self._looks is None or self._looks.at_all_values:
            return self._looks is not None
        return all(self._is_of_buffers(x) for x in tree_leaves(arguments) if isinstance(x, FakeTensor))

    def _may_look_at_mask(self, part: torch.Tensor) -> bool:
        looks_at_masks = self._looks is not None and self._looks.at_masks
        return looks_at_masks and part.dtype == torch.bool and part.dim() > 0 and self._may_look_at(part)

    def _is_of_buffers(self, tensor: torch.Tensor) -> bool:
        """Whether only constants and buffers, before the call writes into them, determine a tensor."""
        assert self._tensors is not None
        try:
            value = self._tensors.value(tensor)
        except NotImplementedError:
            return False
        nodes, sources = self.computation(value)
        if sources is None or any(each.name for node in nodes for each in node.written):
            return False
        return not any(isinstance(self._tensors.tensor_of(source), torch.nn.Parameter) for source in sources)

    def call(self, function: Function, args: Arguments, kwargs: dict[str, object]) -> object:
        """The result of a call of tensors with known values; NotImplemented if any is unknown."""
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        known = {id(tensor): self.of_tensor(tensor) for tensor in tensors}
        if not known or any(values is None for values in known.values()):
            return NotImplemented
        args, kwargs = tree_map_only(torch.Tensor, lambda tensor: known[id(tensor)], (args, kwargs))
        return really(function, args, kwargs)

    def _with_numbers(self, index: object) -> object:
        """An index with numbers in place of masks that are known."""
        parts = index if isinstance(index, tuple) else (index,)
        numbers = [self._numbers_of(part) for part in parts]
        if all(number is None for number in numbers):
            return index
        return tuple(
            other for part, number in zip(parts, numbers, strict=True)
            for other in ((part,) if number is None else number)
        )  # fmt: skip

    def _numbers_of(self, part: object) -> tuple[object, ...] | None:
        """Numbers in place of a mask, a single number or a slice with tensors in an index; None for other parts."""
        if (mask := self._known_mask(part)) is not None:
            return really(mask.nonzero, (), {"as_tuple": True})
        if isinstance(part, torch.Tensor) and not part.dim() and part.dtype in _WHOLE_NUMBERS:
            return (int(part),) if self._is_size(part) else None
        if isinstance(part, slice) and any(isinstance(end, torch.Tensor) for end in (part.start, part.stop)):
            ends = part.start, part.stop, part.step
            if not self._may_look_at(ends):
                return None
            return (slice(*(int(end) if isinstance(end, torch.Tensor) else end for end in ends)),)
        if not isinstance(part, torch.Tensor) or not self._may_look_at_mask(part):
            return None
        return part.nonzero(as_tuple=True)

    def _known_mask(self, part: object) -> torch.Tensor | None:
        """A mask whose values are known while those of other tensors are not; None for all else."""
        if not isinstance(part, torch.Tensor) or part.dtype != torch.bool or not part.dim():
            return None
        return self.of_tensor(part)

    def of_tensor(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """The values of a tensor; None if they are not known."""
        if not isinstance(tensor, FakeTensor):
            return tensor
        value = None if self._tensors is None else self._tensors.known(tensor)
        return tensor.constant if value is None else self.of(value)

    def of(self, value: Value) -> torch.Tensor | None:
        """The values of a tensor of the recording; None if they are not known."""
        if value not in self._computed:
            pending = [value]
            while pending:  # a chain of calls may be longer than Python allows calls within calls
                inputs = [each for each in self._inputs_of(pending[-1]) if each not in self._computed]
                if inputs:
                    pending += inputs
                else:
                    current = pending.pop()
                    self._computed[current] = really(self._compute, (current,), {})
        return self._computed[value]

    def _inputs_of(self, value: Value) -> list[Value]:
        node = self._recording.producer(value)
        return [] if node is None or node.key in _OF_SHAPES else node.inputs

    def _compute(self, value: Value) -> torch.Tensor | None:
        """The values of a tensor whose inputs are computed."""
        node = self._recording.producer(value)
        if node is None:
            known = self._buffers.get(value.name, value.constant)
            return None if known is None or known.is_meta else known.detach()
        if node.key in _OF_SHAPES:
            values = [each.empty(torch.device("cpu")) for each in node.inputs]
        else:
            values = [x for each in node.inputs if (x := self._computed[each]) is not None]
        is_layer = isinstance(node.target, torch.nn.Module)
        if len(values) < len(node.inputs) or is_layer or math.prod(value.shape) > _MOST_ELEMENTS:
            return None
        pairs = zip(node.inputs, values, strict=True)
        own = [x.clone() if each in node.written else x for each, x in pairs]
        result, drew = undrawn(lambda: node.as_function()(*own))
        if drew:
            return None  # random numbers are others in each call
        results = own[:1] if node.key == "setitem" else tree_leaves(result)
        return [each for each in results if isinstance(each, torch.Tensor)][node.outputs.index(value)].detach()

    def computation(self, last: Value | None) -> tuple[list[Node], list[Value] | None]:
        """The nodes that compute a value, in order, and what they read; None if that is not known before a call."""
        if last is None:
            return [], None
        calls, sources, pending = dict[Node, None](), dict[Value, None](), [last]
        while pending:
            value = pending.pop()
            node = self._recording.producer(value)
            if self.of(value) is not None or value.name:
                sources[value] = None
            elif node is None or node.buffers:
                return [], None
            elif node not in calls:
                calls[node] = None
                pending += node.inputs
        if any(really(_draws, (node,), {}) for node in calls):  # which may compute with whole tensors
            return [], None
        return [node for node in self._recording.nodes if node in calls], [*sources]


def really(function: Callable[..., Result], args: Arguments, kwargs: Options) -> Result:
    """The result of a call with values, of which no recorder knows."""
    with without_functions(), without_modes(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return function(*args, **kwargs)


def undrawn(call: Callable[[], Result]) -> tuple[Result, bool]:
    """The result of a call, and whether it drew random numbers of the CPU; the generator stays as it was."""
    before = torch.get_rng_state()
    try:
        result = call()
        return result, not torch.equal(torch.get_rng_state(), before)
    finally:
        torch.set_rng_state(before)


def _draws(node: Node) -> bool:
    """Whether a node draws random numbers."""
    if not node.inputs:
        return True  # its values would be known
    if isinstance(node.target, torch.nn.Module):
        return node.module.training and "ropout" in type(node.module).__name__
    zeros = [torch.zeros_like(value.empty(torch.device("cpu"))) for value in node.arguments]

    def call() -> None:
        with contextlib.suppress(Exception):  # zeros may be no values that the function takes
            node.as_function()(*zeros)

    return undrawn(call)[1]
