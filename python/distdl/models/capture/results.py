"""Results of calls without values. A call like one before is not computed again.

Deep models repeat a few calls many times. Without values, a result is a shape, strides and a dtype, for which torch
takes some hundred microseconds a call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import BuiltinFunctionType, FunctionType, MethodDescriptorType, WrapperDescriptorType
from typing import NamedTuple

import torch

from distdl import _core
from distdl.models.capture import unrecorded
from distdl.models.capture.arguments import call_detaching
from distdl.models.capture.memory_order import with_real_strides
from distdl.models.capture.recording import Arguments, Function, Target
from distdl.torch_compat.autograd import number_of_writes
from distdl.torch_compat.fake import FakeTensor, FakeTensorMode
from distdl.torch_compat.modes import active_modes, without_functions
from distdl.torch_compat.trees import tree_leaves

Key = tuple[object, ...]
_FUNCTIONS_IN_C = (BuiltinFunctionType, MethodDescriptorType, WrapperDescriptorType)
_FUNCTIONS_IN_PYTHON = {"torch._tensor", "torch.functional", "torch.nn.functional"}
_NUMBERS_AND_NAMES = {bool, int, float, complex, str, type(None), type(...), torch.dtype, torch.device, torch.layout,
                      torch.memory_format}  # fmt: skip
_OF_EVERY_MODULE = frozenset(vars(torch.nn.Module())) - {"training"}


class _Result(NamedTuple):
    """A tensor without values that shares no memory."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    mode: FakeTensorMode
    requires_grad: bool

    def made(self) -> torch.Tensor:
        """A tensor like it."""
        tensor = FakeTensor(self.mode, _core.without_values(self.shape, self.strides, self.dtype), self.device)
        if self.requires_grad:
            _core.take_for_result(tensor)
        return tensor


class _NotComparableError(Exception):
    """An argument or a function that is not told by numbers and names."""


class Results:
    """Computes the results of the calls of a recording.

    Args:
        real_strides: whether each call also runs with zeros, so that results have the strides of real tensors.
    """

    def __init__(self, real_strides: bool) -> None:
        self._real_strides, self._modes = real_strides, active_modes() + 1  # that of tensors without values follows
        self._known: dict[Key, tuple[type, list[_Result]]] = {}

    def of(
        self, target: Target, run: Function, args: Arguments, kwargs: dict[str, object], versions: Mapping[int, int]
    ) -> tuple[object, list[torch.Tensor]]:
        """The result of a call, and the tensors by which torch has no derivative of it.

        Args:
            target: the function, or the layer.
            run: computes it.
            versions: of the tensors among the arguments, by their ids.
        """
        with without_functions():
            key = None if active_modes() > self._modes else _key(target, args, kwargs)  # modes of the model see all
            if key in self._known:
                kind, results = self._known[key]
                made = [result.made() for result in results]
                return made[0] if kind is FakeTensor else kind(made), []
        result, underived = call_detaching(run, args, kwargs)
        if self._real_strides:
            result = with_real_strides(target, run, args, kwargs, result)
        if key is not None and not underived:
            with without_functions():
                self._note(key, _tensors_in(args, kwargs), versions, result)
        return result, underived

    def _note(self, key: Key, tensors: Sequence[torch.Tensor], versions: Mapping[int, int], result: object) -> None:
        """Note a result, unless the call has written into its arguments, or it shares memory with them."""
        if any(versions[id(x)] != number_of_writes(x) for x in tensors):
            return
        results: Sequence[object] = result if isinstance(result, list | tuple) else [result]
        memories, noted = [*{unrecorded.storage_of(x) for x in tensors}], []
        for x in results:
            if not isinstance(x, FakeTensor) or not _has_no_values(x) or x.storage_offset():
                return
            if x.is_leaf == x.requires_grad:  # no result of the arguments
                return
            memories.append(unrecorded.storage_of(x))
            noted.append(_Result(x.shape, x.stride(), x.dtype, x.fake_device, x.fake_mode, x.requires_grad))
        if len({*memories}) == len(memories) and type(result) in (FakeTensor, list, tuple):
            self._known[key] = type(result), noted


def _key(target: Target, args: Arguments, kwargs: Mapping[str, object]) -> Key | None:
    """All on which a result depends; None if this is not known."""
    try:
        called = _told_module(target) if isinstance(target, torch.nn.Module) else _told_function(target)
        told = _told(args), tuple(kwargs), _told(tuple(kwargs.values()))
    except _NotComparableError:
        return None
    ids = [*map(id, _tensors_in(args, kwargs))]
    if not ids:  # the default device counts
        return None
    cuda, einsum = torch.backends.cuda, torch.backends.opt_einsum
    return (
        called, *told, *map(ids.index, ids), torch.is_grad_enabled(), torch.get_default_dtype(),
        *unrecorded.autocast().values(), cuda.flash_sdp_enabled(), cuda.mem_efficient_sdp_enabled(),
        cuda.math_sdp_enabled(), torch.backends.mha.get_fastpath_enabled(), einsum.enabled, einsum.strategy,
    )  # fmt: skip


def _tensors_in(args: Arguments, kwargs: Mapping[str, object]) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]


def _told_function(target: Target) -> object:
    is_in_python = isinstance(target, FunctionType) and target.__module__ in _FUNCTIONS_IN_PYTHON
    if not (is_in_python or isinstance(target, _FUNCTIONS_IN_C)) or target.__name__ == "apply":  # of autograd functions
        raise _NotComparableError
    return target


def _told_module(module: torch.nn.Module) -> object:
    """A layer of torch.nn, by its classes, options, parameters and buffers."""
    told: list[object] = []
    for own in module.modules():
        attributes = vars(own)
        told.append(type(own))
        for kind in ("_parameters", "_buffers"):
            told += [(name, _told(tensor)) for name, tensor in attributes[kind].items()]
        told += [(name, _told(value)) for name, value in attributes.items() if name not in _OF_EVERY_MODULE]
    return tuple(told)


def _told(argument: object) -> object:
    """An argument by numbers and names, with their classes: 1, 1.0 and True give other dtypes."""
    kind = type(argument)
    if kind in _NUMBERS_AND_NAMES:
        return kind, argument
    if isinstance(argument, tuple | list) and kind in (tuple, list, torch.Size):
        return kind, *map(_told, argument)
    if isinstance(argument, slice):
        return slice, _told((argument.start, argument.stop, argument.step))
    if not isinstance(argument, FakeTensor) or not _has_no_values(argument):
        raise _NotComparableError
    strides, offset = argument.stride(), argument.storage_offset()
    return argument.shape, strides, offset, argument.dtype, argument.fake_device, argument.requires_grad


def _has_no_values(x: FakeTensor) -> bool:
    """Whether a tensor is told by its shape, strides and dtype."""
    return x.constant is None and x.layout == torch.strided and not (x.is_conj() or x.is_neg())
