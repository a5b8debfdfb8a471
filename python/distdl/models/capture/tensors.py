"""Values of the tensors that a model holds while it is recorded, and writes into their memory."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch

from distdl.models.capture import unrecorded
from distdl.models.capture.recording import Arguments, Value
from distdl.models.capture.selections import UNKNOWN_NUMBER, Selections
from distdl.models.capture.source_line import source_line
from distdl.torch_compat.autograd import number_of_writes
from distdl.torch_compat.fake import FakeTensor
from distdl.torch_compat.trees import register_holders, tree_leaves, tree_map_only

_WITHOUT_TENSORS = (torch.Tensor, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size,
                    enum.Enum, type)  # fmt: skip


Kept = Callable[[torch.Tensor], Value | None]


class RecordedTensors:
    """The values of tensors. A tensor with memory that was written into otherwise may not be used any more.

    Args:
        names: of parameters and buffers, by id.
        attributes: names of attributes of modules, by the id of the objects that they hold.
        selections: elements that masks select, which have no values.
        kept: finds the value of a tensor that the model has kept from an earlier call; None for others.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        names: Mapping[int, str],
        attributes: Mapping[int, str],
        selections: Selections,
        kept: Kept,
    ) -> None:
        self._names, self._attributes, self._selections, self._kept = names, attributes, selections, kept
        self._values: dict[int, Value] = {}
        self._alive: list[torch.Tensor] = []  # so that no id is used twice
        self._versions = {id(tensor): number_of_writes(tensor) for tensor in (*model.parameters(), *model.buffers())}
        self._where = ""
        self.stale: set[int] = set()
        self.versions_before: Mapping[int, int] = {}  # of the tensors of a call that has written into some of them

    def new(self, tensor: torch.Tensor, name: str = "", constant: torch.Tensor | None = None) -> Value:
        """A new value for a tensor."""
        strides = tensor.stride() if tensor.layout == torch.strided else ()
        described = tuple(tensor.shape), tensor.dtype, tensor.requires_grad, name, constant, strides
        value = self._values[id(tensor)] = Value(len(self._alive), *described)
        self._alive.append(tensor)
        self.note_writes([tensor])
        return value

    def note_writes(self, tensors: Sequence[torch.Tensor]) -> None:
        """Note that all writes into tensors so far are recorded."""
        self._versions.update({id(tensor): number_of_writes(tensor) for tensor in tensors})

    def without_derivative(self, value: Value) -> Value:
        """The same value without a derivative, in its place."""
        own = self._values[id(self.tensor_of(value))] = replace(value, is_differentiable=False)
        return own

    def tensor_of(self, value: Value) -> torch.Tensor:
        """The tensor that a value is of."""
        return self._alive[value.number]

    def current(self, tensor: torch.Tensor) -> Value:
        """The value of a tensor that has one."""
        return self._values[id(tensor)]

    def known(self, tensor: torch.Tensor) -> Value | None:
        """The value of a tensor; None without one, or if it may not be used any more."""
        return None if id(tensor) in self.stale else self._values.get(id(tensor))

    def value(self, tensor: torch.Tensor) -> Value:
        """The value of a tensor; a new one for parameters, buffers and constants at their first use.

        Raises:
            NotImplementedError: if the recording does not show how the tensor was computed.
        """
        if id(tensor) in self.stale:
            raise NotImplementedError(
                f"a tensor of shape {list(tensor.shape)} is used {self._place()} after another one with the same "
                "memory was written into; write into the tensor itself"
            )
        if self._has_unrecorded_writes(tensor):
            raise NotImplementedError(
                f"a tensor of shape {list(tensor.shape)} is used {self._place()} after a function wrote into it that "
                "cannot be recorded"
            )
        if id(tensor) in self._values:
            return self.current(tensor)
        if self._selections.among(tensor):
            raise NotImplementedError(f"elements that a mask selects are used {self._place()}; {UNKNOWN_NUMBER}")
        if id(tensor) in self._names:
            return self.new(tensor, name=self._names[id(tensor)])
        if not isinstance(tensor, FakeTensor):
            return self.new(tensor, constant=tensor)
        if tensor.constant is not None:
            return self.new(tensor, constant=tensor.constant)
        if (value := self._kept(tensor)) is not None:
            return value
        raise NotImplementedError(
            f"a tensor of shape {list(tensor.shape)} comes from a function that cannot be recorded, such as "
            f"torch.func.vmap, or from an earlier call, {self._place()}; what a call needs of the one before can "
            "be returned by it, or kept in a buffer"
        )

    def values_in(self, args: Arguments, kwargs: dict[str, object]) -> tuple[Arguments, dict[str, object]]:
        """The arguments of a call, with values in place of tensors."""
        described: tuple[Arguments, dict[str, object]] = tree_map_only(torch.Tensor, self.value, (args, kwargs))
        return described

    def changed(self, tensor: torch.Tensor, name: str) -> Value | None:
        """The value of a tensor of the model; None if it still is the initial tensor of this name."""
        if id(tensor) in self.stale or self._has_unrecorded_writes(tensor):
            raise NotImplementedError(f"the model writes into {name} in a way that cannot be recorded; use copy_()")
        value = self._values.get(id(tensor))
        return None if value is None or (name and value.name == name) else value

    def parameters_of(self, layer: torch.nn.Module) -> dict[str, Value]:
        """The values of a layer's parameters; a weight that was registered again comes before the bias, as always."""
        named = sorted(layer.named_parameters(), key=lambda each: each[0] == "bias")
        return {name: self.value(parameter) for name, parameter in named}

    def names_of_buffers(self, layer: torch.nn.Module) -> dict[str, str]:
        """The names in the model of a layer's buffers, which it reads and writes in the model itself."""
        names = {}
        for name, buffer in layer.named_buffers():
            names[name] = self._names.get(id(buffer), "")
            if not names[name] or self.changed(buffer, names[name]) is not None:
                what = "was written into before" if names[name] else "is no buffer of the model; use register_buffer()"
                raise NotImplementedError(f"the {name} of {type(layer).__name__} {what}, at {source_line()}")
        return names

    def sharing_memory(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """Other tensors with the memory of a tensor that was written into, which is noted."""
        memory = unrecorded.storage_of(tensor)
        sharing = (x for x in self._alive if x is not tensor and unrecorded.storage_of(x) == memory)
        others = [*{id(x): x for x in sharing}.values()]
        self.note_writes(others)
        return others

    def results(self, results: object) -> object:
        """The objects that the model returns, with values in place of tensors.

        Raises:
            NotImplementedError: if it returns objects in which tensors cannot be found.
        """
        register_holders(results)  # from here on their tensors are found, also by gather()
        for leaf in tree_leaves(results):
            has_been_searched = hasattr(leaf, "__dict__") and not isinstance(leaf, torch.nn.Module)
            if not has_been_searched and not isinstance(leaf, _WITHOUT_TENSORS):
                raise NotImplementedError(
                    f"the model returns a {type(leaf).__name__}, in which tensors cannot be found; return tensors in a "
                    "tuple, a list, a dict, or attributes of an object"
                )
        self._where = "where the model returns it"
        values = tree_map_only(torch.Tensor, self.value, results)
        self.refuse_lost_gradients(values)
        return values

    def refuse_lost_gradients(self, values: object) -> None:
        """Refuse constants that ask for gradients: no rank would give gradients to the model's own tensor."""
        for value in tree_leaves(values):
            if isinstance(value, Value) and value.constant is not None and value.constant.requires_grad:
                name = self._attributes.get(id(value.constant), f"a tensor of shape {list(value.shape)}")
                raise NotImplementedError(
                    f"{name} asks for gradients and is no parameter of the model, {self._place()}; make it a "
                    "torch.nn.Parameter of a module of the model, or use what detach() gives"
                )

    def _place(self) -> str:
        return self._where or f"at {source_line()}"

    def _has_unrecorded_writes(self, tensor: torch.Tensor) -> bool:
        now = self.versions_before.get(id(tensor), number_of_writes(tensor))
        return self._versions.get(id(tensor), now) != now
