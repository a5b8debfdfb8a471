"""Layers that wrap a module of torch, whose parameters and buffers they share under the same names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any, ClassVar, cast

import torch

from distdl import operators
from distdl.modules.deep_copy import copied
from distdl.modules.module import refuse_distributed
from distdl.modules.state import tensors_in_state
from distdl.nn.base.compile.calls import place_of
from distdl.nn.base.layer import Layer
from distdl.nn.base.options import comparable, refuse_lazy
from distdl.nn.base.split_checks import shape_after
from distdl.parameters.layout import Layout, current_kind
from distdl.partitions.boxes import as_slices
from distdl.partitions.construction import constructing
from distdl.partitions.signatures import misfit
from distdl.partitions.structure import zero_volume_tensor
from distdl.texts import safe_text, text_of
from distdl.torch_compat.parametrizations import computed_weights
from distdl.torch_compat.subclasses import may_override, overridden
from distdl.torch_compat.trees import tree_flatten

ModuleCall = tuple[tuple[object, ...], dict[str, object]]
"""The arguments of a call of the module, by position and by name: the only argument of ``compute``."""


class WrappedModule(Layer):
    """A layer around a copy of a module, of which each rank has its part of the parameters.

    Attributes:
        module: the copy. Parameters and buffers keep their names.
        needs_one_name: whether modules within must have a single name.
    """

    tensors: ClassVar[tuple[str, ...]] = ("first tensor", *(f"tensor {i}" for i in range(1, 512)))
    needs_one_name: ClassVar[bool] = True
    module: torch.nn.Module

    # Constructing

    def check_options(self) -> None:
        module, name = cast(Any, self.module), type(self).__name__
        if not isinstance(module, torch.nn.Module):
            raise TypeError(f"{name}: module is of type {type(module).__name__}; it has to be a torch.nn.Module")
        kind = type(module).__name__
        refuse_lazy(name, module)
        refuse_distributed(name, module)
        state = dict(module.named_parameters()) | dict(module.named_buffers())
        if sparse := [
            key for key, tensor in state.items() if tensor.layout is not torch.strided and not tensor.is_mkldnn
        ]:
            raise TypeError(
                f"{name}: {sparse[0]} of {kind} is sparse; register its indices and values instead, and multiply by "
                "index_add, which can be split"
            )
        modules = [part for _, part in module.named_modules(remove_duplicate=False) if tensors_in_state(part)]
        if self.needs_one_name and len(modules) > len(set(modules)):
            twice = next(part for i, part in enumerate(modules) if part in modules[:i])
            raise ValueError(
                f"{name}: {kind} holds the same {type(twice).__name__} under two names; let two modules share the "
                "parameters, or call one module twice in forward()"
            )
        self._declare_all(module)
        # This layer shares the parameters, buffers and children of the copy, under the same names.
        for held in ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"):
            self.__dict__[held] = self.module.__dict__[held]
        self._checked_signatures: set[tuple[object, ...]] = set()
        self.training = module.training

    def _declare_all(self, module: torch.nn.Module) -> None:
        """Copy the module with this rank's part of each parameter, and of each buffer in its state."""
        parts: dict[int, Any] = dict(computed_weights(module))
        in_state = set(tensors_in_state(module))
        for name, tensor in module.named_parameters(remove_duplicate=False):
            layout = self.layout_of_parameter(name, tensor)
            self.layouts[name] = layout
            part = torch.empty(layout.local_shape, dtype=tensor.dtype, device=_device_of(tensor))
            parts.setdefault(id(tensor), torch.nn.Parameter(part, tensor.requires_grad))
        for name, tensor in module.named_buffers(remove_duplicate=False):
            if name in in_state:
                self.layouts[name] = layout = self._whole_on_each(tensor, "replicated")
                parts.setdefault(
                    id(tensor), torch.empty(layout.local_shape, dtype=tensor.dtype, device=_device_of(tensor))
                )
        self.__dict__["module"] = self.passed["module"] = copied(module, parts)  # frees the whole module
        self.__dict__["_given"] = module

    def layout_of_parameter(self, name: str, tensor: torch.Tensor) -> Layout:
        """The layout of a parameter: whole on each worker when it is used."""
        return self._whole_on_each(tensor, current_kind(self.default_layout))

    def _whole_on_each(self, tensor: torch.Tensor, kind: str) -> Layout:
        return Layout(self.grid, tuple(tensor.shape), (None,) * tensor.dim(), kind=kind)

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Initialize the parameters as the module's layers do; with the same seed on all ranks.

        Layers without a method ``reset_parameters`` keep their values.
        """
        original = self.__dict__.pop("_given", None)
        tensors = {} if original is None else tensors_in_state(original)
        if original is not None and not any(tensor.is_meta for tensor in tensors.values()):
            self._take(tensors)
            return
        wholes = {
            id(getattr(owner, held)[leaf]): torch.nn.Parameter(
                torch.empty(self.layouts[name].whole_shape, dtype=tensor.dtype, device=tensor.device),
                tensor.requires_grad,
            )
            for owner, held, leaf, name, tensor in self._tensors()
        }
        for prefix, whole in copied(self.module, wholes).named_modules():
            reset = getattr(whole, "reset_parameters", None) or getattr(whole, "_reset_parameters", None)
            if callable(reset):
                reset()
                named = tensors_in_state(whole)
                self._take({f"{prefix}.{name}".removeprefix("."): value for name, value in named.items()})

    def _tensors(self) -> Iterable[tuple[torch.nn.Module, str, str, str, torch.Tensor]]:
        for prefix, owner in self.module.named_modules():
            for held in ("_parameters", "_buffers"):
                for leaf, tensor in getattr(owner, held).items():
                    name = f"{prefix}.{leaf}".removeprefix(".")
                    if name in self.layouts and tensor is not None:
                        yield owner, held, leaf, name, tensor

    def _take(self, wholes: Mapping[str, torch.Tensor]) -> None:
        for *_, name, part in self._tensors():
            layout = self.layouts[name]
            if name in wholes and layout.intervals is not None:
                part.copy_(wholes[name].reshape(layout.shape)[as_slices(layout.intervals)].reshape(part.shape))

    @classmethod
    def _unfit(cls, module: object) -> TypeError | None:
        if isinstance(module, torch.nn.Module):
            return None
        kind = type(module).__name__
        return TypeError(f"{cls.__name__}: from_sequential was passed a {kind}; it takes a torch.nn.Module")

    @classmethod
    def options_of(cls, module: torch.nn.Module) -> dict[str, object]:
        return {"module": module}

    @torch.no_grad()
    def take_weights(self, module: torch.nn.Module, root: int) -> None:
        """Take parameters and buffers of the module of one rank, also buffers outside of the state."""
        super().take_weights(module, root)
        group, in_state = self.grid.constructing_ranks(), tensors_in_state(self)
        here = {name for name, _ in self.module.named_buffers()} - in_state.keys()
        buffers = {name: buffer for name, buffer in module.named_buffers() if name in here}
        if not group.known or not buffers:
            return
        name = f"{type(self).__name__}.from_sequential"
        shapes = {key: list(buffer.shape) for key, buffer in buffers.items()}
        with constructing(name, {"ranks": group}, {"buffers": shapes}):
            has_values = bytes(not buffer.is_meta for buffer in buffers.values())
        of_root = group.gather(has_values)[group.ranks.index(root)]
        spread = operators.broadcast(group.line((root,)), group)
        for (key, buffer), is_there in zip(buffers.items(), of_root, strict=True):
            if is_there:
                target = self.get_buffer(key)
                if target.is_meta:
                    target = torch.empty_like(target, device=self.P_x.device)
                    held, leaf = place_of(self, "buffers", key)
                    held[leaf] = target
                empty = zero_volume_tensor(dtype=target.dtype)
                target.copy_(spread(buffer.to(target.device) if group.me == root else empty))

    def get_submodule(self, target: str) -> torch.nn.Module:
        """Look up a submodule, also by names that this layer uses itself, such as ``blocks``."""
        return self.module.get_submodule(target) if target else self

    # The call

    def forward(self, *args: object, **kwargs: object) -> object:
        """Vote on the call, and apply the module. Collective over the layer's ranks."""
        if not torch.compiler.is_compiling() and (kwargs or may_override(args)):
            return overridden(self._call_module, self.refuse, args, kwargs)
        return self._call_module(*args, **kwargs)

    def _call_module(self, *args: object, **kwargs: object) -> object:
        return super().forward((args, kwargs))

    def _in_order(self, args: tuple[object, ...], kwargs: dict[str, object]) -> tuple[object, ...]:
        return args  # only the module knows its signature

    def compared_tensors(self, inputs: Sequence[object]) -> Sequence[object]:
        """The tensors of the call; keeps other arguments as text."""
        self._other_arguments = ""
        if self._modules is not getattr(self.__dict__.get("module"), "_modules", None):
            return [TypeError("wraps another module than at construction; make another Local for that module")]
        args, kwargs = cast(ModuleCall, inputs[0])
        tensors: list[object] = [*args]
        if kwargs or not args or not all(isinstance(x, torch.Tensor) for x in args):
            leaves, structure = tree_flatten((args, kwargs))
            tensors = [x for x in leaves if isinstance(x, torch.Tensor)]
            others = [safe_text(x, text_of) for x in leaves if not isinstance(x, torch.Tensor)]
            self._other_arguments = f" {safe_text(structure)} [{', '.join(others)}]"
            if any(isinstance(x, torch.Generator) for x in leaves):
                return [TypeError("has a torch.Generator beside it, one on each rank; call torch.manual_seed instead")]
            first = leaves[0] if leaves else None
            if not isinstance(first, torch.Tensor):
                tensors = [first]
        problem = self._misfit(args, kwargs)
        if problem is not None:
            return [TypeError(f"cannot be passed to {type(self.module).__name__}: {problem}")]
        if len(tensors) > len(self.tensors):
            return [ValueError(f"is one of {len(tensors)}; at most {len(self.tensors)} are expected")]
        return tensors

    def compared_each_call(self) -> str:
        return self._modes() + self._other_arguments

    def own_changed_options(self) -> list[str]:
        return [*super().own_changed_options(), *self._changed_within()]

    def _changed_within(self) -> list[str]:
        """Changes of modules, buffers, and options of layers of torch in the module."""
        changes: list[str] = []
        if [*self.module.modules()] != self._first_modules:
            return [f"module={' '.join(repr(self.module).split())}"]
        shapes = [buffer.shape for buffer in self.module.buffers()]
        if shapes != self._first_shapes:
            changes.append(f"buffers of shapes {[list(shape) for shape in shapes]}")
        for layer, name, value in [each for each in self._first_within if vars(each[0]).get(each[1]) is not each[2]]:
            was, now = repr(comparable(value)), repr(comparable(vars(layer).get(name)))
            if was != now:
                changes.append(f"{type(layer).__name__}.{name}={now} (it was constructed with {was})")
        return changes

    def buffers_in_use(self) -> list[torch.Tensor]:
        return [*self.module.buffers()]

    def _modes(self) -> str:
        modes = [part.training for part in self.modules()]
        if len(set(modes)) == 1:
            return "in training" if modes[0] else "in evaluation"
        return f"in training: {[name or type(self).__name__ for name, part in self.named_modules() if part.training]}"

    def _misfit(self, args: tuple[object, ...], kwargs: dict[str, object]) -> TypeError | None:
        """The reason why the arguments do not match the module; it checks only their number and names."""
        names = (len(args), *kwargs)
        if names not in self._checked_signatures:
            problem = misfit(self.module.forward, args, kwargs)
            if problem is not None:
                return problem
            self._checked_signatures.add(names)
        return None

    def _declared_parameters(self) -> list[torch.Tensor]:
        return [attrgetter(name)(self.module) for name in self._parameter_names]

    def prepare(self) -> None:
        """Note the modules, and the options of layers of torch, which a rank may assign between calls."""
        self._first_modules = [*self.module.modules()]
        self._first_shapes = [buffer.shape for buffer in self.module.buffers()]
        self._first_within = [
            (layer, name, value)
            for layer in self._first_modules
            if type(layer).__module__.startswith("torch.nn.modules.")
            for name, value in vars(layer).items()
            if name[0] != "_" and name != "training"
        ]

    def result_dims(self, dims: int) -> int:
        return len(shape_after(self.module, self.grid.shape))

    def extra_repr(self) -> str:
        return f"{type(self.module).__name__}({self.module.extra_repr()}), P_x={self.P_x}"


def _device_of(tensor: torch.Tensor) -> torch.device | None:
    return None if tensor.is_meta else tensor.device
