"""Layers of torch, and modules of the user's, that work on each block by itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter, index
from typing import Any, ClassVar, cast

import torch
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import TreeSpec, tree_flatten, tree_structure, tree_unflatten

from distdl import operators
from distdl.collective.comparison import compare, misfit, shown
from distdl.collective.construction import PartitionLike, constructing
from distdl.nn.compiled.calls import place_of
from distdl.nn.copied import copied
from distdl.nn.coverage import problem_of, through
from distdl.nn.layer import Layer
from distdl.nn.module import refuse_distributed
from distdl.nn.options import comparable, refuse_lazy
from distdl.nn.parametrized import computed_weights
from distdl.nn.states import tensors_in_state
from distdl.nn.subclasses import may_override, overridden
from distdl.nn.tie import connected
from distdl.parameters.layout import Layout, current_kind
from distdl.structure import zero_volume_tensor

__all__ = ["Local"]

Call = tuple[tuple[object, ...], dict[str, object]]


class Local(Layer):
    """Applies a module of torch to each block by itself, with parameters that are owned and shared like ours.

    It is for what looks across no dimension that is split: activations, ``torch.nn.Linear`` over features that are
    whole, recurrent layers where the batch alone is split, modules of the user's. Each worker of P_x calls the module
    with its own blocks, and with all of its parameters; their gradients are summed over the workers.

    Args:
        P_x: the partition of the first tensor of a call, with as many dimensions.
        module: any module of torch, with the same options and weights on all ranks, as the same seed gives them;
            :meth:`from_sequential` takes the weights of one rank. It is copied, and remains as it is.
        outputs: how many tensors the module returns, as a number or, where they are nested, in the same structure:
            ``outputs=(1, (1, 1))`` for ``torch.nn.LSTM``. Ranks that compute nothing return zero volume in it.

    Shape:
        What the module takes: the first argument is a tensor in blocks of P_x, any other argument may be anything.
        What is no tensor has to be equal on all ranks. The result is what the module makes of these blocks; zero volume
        on all other ranks.

    Attributes:
        module: the copy. Parameters and buffers have the names that they have in it, such as ``weight`` or
            ``0.weight``. Each parameter is whole on its owner: see :func:`distdl.parameter_layout`.

    Raises:
        TypeError: on all ranks, if ``module`` is no module, holds a layer over partitions, or was not initialized.
        ValueError: on all ranks, if P_x splits a dimension that the module looks across, as far as it is a layer of
            torch.nn or a ``torch.nn.Sequential``: the message names the layer to use. Of other modules the author knows
            that they work on each block by itself; batch norms and dropout in training are refused in them, too. Also
            if the module writes into one of its buffers, which would differ from worker to worker.
        What the module raises, on all ranks, in the first call with tensors of this structure; a type of exception that
            other ranks may not have becomes a RuntimeError.

    A module of the user's that calls functions such as ``torch.nn.functional.dropout`` draws the same numbers on each
    block; nobody can notice that from outside. Use :class:`distdl.nn.DistributedDropout`.

    Constructing is collective over the communicator that P_x comes from, calling over the ranks of P_x.
    """

    tensors: ClassVar[tuple[str, ...]] = ("first tensor", *(f"tensor {i}" for i in range(1, 16)))
    needs_one_name: ClassVar[bool] = True  # that no module within is there under two
    module: torch.nn.Module
    outputs: Any

    def __init__(self, P_x: PartitionLike, module: torch.nn.Module, outputs: object = 1) -> None:
        super().__init__(locals())

    # Constructing

    def check_options(self) -> None:
        module: Any = self.module
        if not isinstance(module, torch.nn.Module):
            raise TypeError(f"Local: module is of type {type(module).__name__}; it has to be a torch.nn.Module")
        kind = type(module).__name__
        refuse_lazy("Local", module)
        refuse_distributed("Local", module)
        modules = [one for _, one in module.named_modules(remove_duplicate=False) if tensors_in_state(one)]
        if self.needs_one_name and len(modules) > len(set(modules)):
            twice = next(one for i, one in enumerate(modules) if one in modules[:i])
            raise ValueError(
                f"Local: {kind} holds the same {type(twice).__name__} under two names; let two modules share the "
                "parameters, or call one module twice in forward()"
            )
        self._check_outputs()
        self._declare_all(module)
        # Parameters, buffers and children of the copy are those of this layer, under the same names.
        for held in ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"):
            self.__dict__[held] = self.module.__dict__[held]
        own_classes = {type(one).__module__.startswith("torch.nn.modules.") for one in module.modules()}
        self._may_leave_out = own_classes != {True} and self.grid.size > 1
        self._first_call = False
        self._that_fit: set[tuple[object, ...]] = set()
        self.training = module.training

    def _check_outputs(self) -> None:
        if isinstance(self.outputs, tuple | list | dict):
            return
        try:
            count = index(self.outputs)
        except TypeError as error:
            raise TypeError(
                f"Local: outputs={self.outputs!r}; it must be a number of tensors, or a structure"
            ) from error
        if count < 1:
            raise ValueError(f"Local: outputs={count}; a module returns at least one tensor")

    def _structure(self) -> TreeSpec:
        """The structure of the results."""
        outputs = self.outputs
        return tree_structure((1,) * outputs if isinstance(outputs, int) and outputs > 1 else outputs)

    def _declare_all(self, module: torch.nn.Module) -> None:
        """Copy the module with this rank's part in place of each parameter and each buffer that is in its state."""
        parts: dict[int, Any] = dict(computed_weights(module))
        in_state = set(tensors_in_state(module))
        for name, tensor in module.named_parameters(remove_duplicate=False):
            layout = self._whole_on_each(tensor, current_kind())
            self.layouts[name] = layout
            part = torch.empty(layout.local_shape, dtype=tensor.dtype, device=_device_of(tensor))
            parts.setdefault(id(tensor), torch.nn.Parameter(part, tensor.requires_grad))
        for name, tensor in module.named_buffers(remove_duplicate=False):
            if name in in_state:
                self.layouts[name] = layout = self._whole_on_each(tensor, "replicated")
                parts.setdefault(
                    id(tensor), torch.empty(layout.local_shape, dtype=tensor.dtype, device=_device_of(tensor))
                )
        self.__dict__["module"] = self.given["module"] = copied(module, parts)  # the whole one need not stay
        self.__dict__["_given"] = module

    def _whole_on_each(self, tensor: torch.Tensor, kind: str) -> Layout:
        return Layout(self.grid, tuple(tensor.shape), (None,) * tensor.dim(), kind=kind)

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Give the parameters the first values that the module's own layers give them; with the same seed on all ranks.

        The layers in the module that have no method ``reset_parameters`` keep their values.
        """
        given = self.__dict__.pop("_given", None)
        own = {} if given is None else tensors_in_state(given)
        if given is not None and not any(tensor.is_meta for tensor in own.values()):
            self._take(own)
            return
        wholes = {
            id(getattr(one, held)[leaf]): torch.nn.Parameter(
                torch.empty(self.layouts[name].shape, dtype=tensor.dtype, device=tensor.device), tensor.requires_grad
            )
            for one, held, leaf, name, tensor in self._tensors()
        }
        for prefix, whole in copied(self.module, wholes).named_modules():
            reset = getattr(whole, "reset_parameters", None) or getattr(whole, "_reset_parameters", None)
            if callable(reset):
                reset()
                named = tensors_in_state(whole)
                self._take({f"{prefix}.{name}".removeprefix("."): one for name, one in named.items()})

    def _tensors(self) -> Iterable[tuple[torch.nn.Module, str, str, str, torch.Tensor]]:
        for prefix, one in self.module.named_modules():
            for held in ("_parameters", "_buffers"):
                for leaf, tensor in getattr(one, held).items():
                    name = f"{prefix}.{leaf}".removeprefix(".")
                    if name in self.layouts and tensor is not None:
                        yield one, held, leaf, name, tensor

    def _take(self, wholes: Mapping[str, torch.Tensor]) -> None:
        for *_, name, part in self._tensors():
            intervals = self.layouts[name].intervals
            if name in wholes and intervals is not None:
                part.copy_(wholes[name][tuple(slice(*interval) for interval in intervals)])

    @classmethod
    def _unfit(cls, module: object) -> TypeError | None:
        if isinstance(module, torch.nn.Module):
            return None
        return TypeError(f"Local: from_sequential was passed a {type(module).__name__}; it takes a torch.nn.Module")

    @classmethod
    def options_of(cls, module: torch.nn.Module) -> dict[str, object]:
        """The module."""
        return {"module": module}

    @torch.no_grad()
    def take_weights(self, module: torch.nn.Module, root: int) -> None:
        """Take parameters and buffers of the module of one rank, also the buffers that are in no state."""
        super().take_weights(module, root)
        everyone, in_state = self.grid.constructing_ranks(), tensors_in_state(self)
        given = {name: one for name, one in module.named_buffers() if name not in in_state}
        if not everyone.known or not given:
            return
        name = f"{type(self).__name__}.from_sequential"
        with constructing(name, {"ranks": everyone}, {"buffers": {key: list(one.shape) for key, one in given.items()}}):
            has_values = bytes(not one.is_meta for one in given.values())
        of_root = everyone.gather(has_values)[everyone.ranks.index(root)]
        spread = operators.broadcast(everyone.line((root,)), everyone)
        for (key, one), is_there in zip(given.items(), of_root, strict=True):
            if is_there:
                own = self.get_buffer(key)
                if own.is_meta:
                    own = torch.empty_like(own, device=self.P_x.device)
                    held, leaf = place_of(self, "buffers", key)
                    held[leaf] = own
                own.copy_(spread(one.to(own.device) if everyone.me == root else zero_volume_tensor(dtype=own.dtype)))

    def get_submodule(self, target: str) -> torch.nn.Module:
        """Look up a submodule as torch does, also by names that this layer uses itself, such as ``blocks``."""
        return self.module.get_submodule(target) if target else self

    # Call

    def forward(self, *args: object, **kwargs: object) -> object:
        """Agree on the call, and let the module compute. Collective over the layer's ranks."""
        if not torch.compiler.is_compiling() and (kwargs or may_override(args)):
            return overridden(self._called, self._distdl_refuse, args, kwargs)
        return self._called(*args, **kwargs)

    def _called(self, *args: object, **kwargs: object) -> object:
        return super().forward((args, kwargs))

    def _bound(self, args: tuple[object, ...], kwargs: dict[str, object]) -> tuple[object, ...]:
        return args  # the call, of which only the module knows the signature

    def looked_at(self, inputs: Sequence[object]) -> Sequence[object]:
        """The tensors of the call; what else is said in it is noted."""
        self._said = ""
        if self._modules is not getattr(self.__dict__.get("module"), "_modules", None):
            return [TypeError("meets another module than it was made of; make another Local for that one")]
        args, kwargs = cast(Call, inputs[0])
        given: list[object] = [*args]
        if kwargs or not args or not all(isinstance(one, torch.Tensor) for one in args):
            leaves, structure = tree_flatten((args, kwargs))
            given = [one for one in leaves if isinstance(one, torch.Tensor)]
            others = [shown(one) for one in leaves if not isinstance(one, torch.Tensor)]
            self._said = f" {shown(structure)} [{', '.join(others)}]"
            first = leaves[0] if leaves else None
            if not isinstance(first, torch.Tensor):
                given = [first]
        problem = self._misfit(args, kwargs)
        if problem is not None:
            return [TypeError(f"cannot be passed to {type(self.module).__name__}: {problem}")]
        if len(given) > len(self.tensors):
            return [ValueError(f"is one of {len(given)}; at most {len(self.tensors)} are expected")]
        return given

    def compared_each_call(self) -> str:
        """Modes, and what is no tensor in the call."""
        return self._modes() + self._said

    def _own_changed_options(self) -> list[str]:
        return [*super()._own_changed_options(), *self._changed_within()]

    def _changed_within(self) -> list[str]:
        """The options of the layers of torch in the module, and which modules and buffers these are."""
        found: list[str] = []
        if [*self.module.modules()] != self._first_modules:
            return [f"module={' '.join(repr(self.module).split())}"]
        shapes = [one.shape for one in self.module.buffers()]
        if shapes != self._first_shapes:
            found.append(f"buffers of shapes {[list(shape) for shape in shapes]}")
        for one, name, value in [each for each in self._first_within if vars(each[0]).get(each[1]) is not each[2]]:
            was, now = repr(comparable(value)), repr(comparable(vars(one).get(name)))
            if was != now:
                found.append(f"{type(one).__name__}.{name}={now} (it was constructed with {was})")
        return found

    def _buffers_in_use(self) -> list[torch.Tensor]:
        return [*self.module.buffers()]

    def _modes(self) -> str:
        """Which modules are in training, for messages."""
        modes = [one.training for one in self.modules()]
        if len(set(modes)) == 1:
            return "in training" if modes[0] else "in evaluation"
        return f"in training: {[name or 'Local' for name, one in self.named_modules() if one.training]}"

    def _misfit(self, args: tuple[object, ...], kwargs: dict[str, object]) -> TypeError | None:
        """Why the arguments do not fit the module; it takes a look at their number and names alone."""
        names = (len(args), *kwargs)
        if names not in self._that_fit:
            problem = misfit(self.module.forward, args, kwargs)
            if problem is not None:
                return problem
            self._that_fit.add(names)
        return None

    def _declared_parameters(self) -> list[torch.Tensor]:
        return [attrgetter(name)(self.module) for name in self._parameter_names]

    def prepare(self) -> None:
        """Note what may be assigned on one rank between calls: modules, and the options of those of torch."""
        self._first_modules = [*self.module.modules()]
        self._first_shapes = [one.shape for one in self.module.buffers()]
        self._first_within = [
            (one, name, value)
            for one in self._first_modules
            if type(one).__module__.startswith("torch.nn.modules.")
            for name, value in vars(one).items()
            if name[0] != "_" and name != "training"
        ]

    def set_up(self) -> None:
        self.blocks(self.grid)  # raises where the blocks do not fit together
        self.module.training = self.training
        problem = problem_of(self.module, self.grid.shape)
        if problem:
            raise ValueError(f"Local: {problem}")
        self._first_call = True

    def compute(self, call: Call) -> object:
        """Apply the module to this rank's blocks."""
        args, kwargs = call
        self.module.training = self.training
        parameters = self.parameters_in_use()
        if not self.grid.active:
            problem = self._misfit(args, kwargs)
            if problem is not None:
                raise problem
            found = [one for one in tree_flatten(call)[0] if isinstance(one, torch.Tensor)]
            nothing = self.without_part(found[0]) if found else torch.empty(0, device="cpu")
            structure = self._structure()
            return tree_unflatten([nothing] * structure.num_leaves, structure)
        first, self._first_call = self._first_call, False
        if not first:
            return self._apply_module(parameters, args, kwargs, {})
        error: Exception | None = None
        with _disable_current_modes():  # selective checkpointing sees what every call does
            buffers = {name: one.clone() for name, one in self.named_buffers()} if self.grid.size > 1 else {}
        state = dict(buffers)
        try:
            result = self._apply_module(parameters, args, kwargs, state)
            self._check(result)
            with _disable_current_modes():
                self._check_written({name: state[name] for name in buffers})
        except Exception as raised:
            error = raised
        try:
            compare("Local", "first call of Local", self.grid.line(self.grid.ranks), error, {}, {})
        except Exception:
            assert self._distdl_agreement is not None
            self._distdl_agreement.forget()  # so that the next call asks again, on all ranks
            raise
        return result

    def _apply_module(
        self,
        parameters: Sequence[torch.Tensor],
        args: tuple[object, ...],
        kwargs: dict[str, object],
        state: dict[str, torch.Tensor],
    ) -> object:
        """Call the module. It uses the buffers in `state` in place of its own, and may replace them there."""
        if not state and self._transport.is_identity:
            result = self.module(*args, **kwargs)
        else:
            state.update(zip(self._parameter_names, parameters, strict=True))
            result = torch.func.functional_call(self.module, state, args, kwargs)
        if not self._may_leave_out:
            return result
        # What the module does not use on this worker it may use on another one.
        leaves, structure = tree_flatten(result)
        return tree_unflatten(connected(leaves, [*parameters, *tree_flatten((args, kwargs))[0]]), structure)

    def _check(self, result: object) -> None:
        """Refuse results in another structure than was said."""
        leaves, structure = tree_flatten(result)
        name = type(self.module).__name__
        if structure != self._structure() or not all(isinstance(one, torch.Tensor) for one in leaves):
            shown = tree_unflatten([1 if isinstance(one, torch.Tensor) else one for one in leaves], structure)
            raise ValueError(
                f"Local: {name} returns tensors in the structure {shown!r}, and outputs={self.outputs!r}; outputs has "
                "to be the structure"
            )

    def _check_written(self, buffers: Mapping[str, torch.Tensor]) -> None:
        """Refuse a module that wrote into its buffers, which would differ among the workers."""
        written = [name for name, one in self.named_buffers() if name in buffers and _differ(one, buffers[name])]
        if written:
            raise ValueError(
                f"Local: {type(self.module).__name__} writes into its buffer {written[0]}, which would differ among "
                f"the {self.grid.size} workers; a layer that derives from distdl.nn.Layer can make them agree"
            )

    def result_dims(self, dims: int) -> int:
        return len(through(self.module, self.grid.shape))

    def extra_repr(self) -> str:
        """The module and the partition."""
        return f"{type(self.module).__name__}({self.module.extra_repr()}), P_x={self.P_x}"


def _device_of(tensor: torch.Tensor) -> torch.device | None:
    """Where its part lives: on the usual device, if nobody has the tensor."""
    return None if tensor.is_meta else tensor.device


def _differ(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether values differ; what is not a number is equal."""
    return a.shape != b.shape or not bool(((a == b) | ((a != a) & (b != b))).all())
