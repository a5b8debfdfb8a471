"""A model of torch over partitions."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from typing_extensions import Self

from distdl import _core, memory
from distdl.models.buffer_caches import drop_own_caches
from distdl.models.capture import unrecorded
from distdl.models.capture.assignments import AttributeSnapshot
from distdl.models.capture.memory_order import InMemory
from distdl.models.capture.recording import Value
from distdl.models.capture.skeleton import Skeleton
from distdl.models.container import Container
from distdl.models.inputs import InputPartitions, in_memory, tensors_in, text_of_others
from distdl.models.operations.placement import Blocks
from distdl.models.passing import Passing
from distdl.models.plan.halo_choice import HALOS
from distdl.models.plan.parameter_splits import split_layouts
from distdl.models.plan.requested import Request, requested_splits
from distdl.models.plan.rule_lookup import FALLBACKS
from distdl.models.program_builder import ProgramBuilder
from distdl.models.program_cache import ProgramCache
from distdl.models.run.outcomes import OtherOutcomeError, OutcomesOfCall
from distdl.models.run.program import Program
from distdl.models.submodule_calls import forbid_submodule_calls
from distdl.modules.module import refuse_distributed
from distdl.nn.base.compile.calls import place_of
from distdl.nn.base.layer import Layer
from distdl.nn.base.options import check_choice
from distdl.nn.base.random_numbers import key_of_first_worker
from distdl.nn.wrapped_module import ModuleCall
from distdl.operators.dispatch import Applied
from distdl.parameters.layout import OF_MODELS, Layout, current_kind
from distdl.partitions.construction import PartitionLike
from distdl.partitions.grid import Grid
from distdl.partitions.partition import Partition
from distdl.torch_compat.modes import unseen_by_modes
from distdl.torch_compat.trees import tree_leaves, tree_map_only


class _NotCalledError(RuntimeError, AttributeError):
    """Also an AttributeError, so that tools which look through all attributes pass over it: torch.jit.trace does."""

    def __init__(self) -> None:
        super().__init__("distribute: the output_partition is known after the first call of the model")


class DistributedModel(Container, Passing):
    """A model over partitions, which :func:`distdl.distribute` makes.

    Shape:
        Tensors with as many dimensions as P_x, in any blocks; and tensors with fewer dimensions, such as times of
        diffusion, which each worker passes whole: the values of worker 0 count, and it receives the gradients.
        ``input_partitions`` names other partitions. The result has the structure that the model returns, with blocks of
        tensors that are split. Results that are not split, such as a loss, are whole on every rank.

    Attributes:
        module: a copy of the model, whose parameters and buffers are this module's own.
        program: the program of the last call; None before the first call.
    """

    plan: Mapping[str, object] | None
    fallback: str
    as_sequential: bool
    input_partitions: Mapping[str | int, object] | None
    values: str
    halos: str
    needs_one_name = brings_parameters = False  # programs bring each parameter just before its first use
    default_layout = OF_MODELS
    program: Program | None
    _requested: Mapping[str, Request]
    _in_blocks: Mapping[str, Layout]  # the layouts of parameters that the plan splits, by name
    _problem: Exception | None  # for which the model cannot be recorded again

    def __init__(
        self,
        P_x: PartitionLike,
        module: torch.nn.Module,
        plan: Mapping[str, object] | None = None,
        fallback: str = "error",
        as_sequential: bool = False,
        input_partitions: Mapping[str | int, object] | None = None,
        values: str = "refuse",
        halos: str = "auto",
    ) -> None:
        Layer.__init__(self, locals())

    def check_options(self) -> None:
        check_choice("distribute", "fallback", self.fallback, FALLBACKS)
        check_choice("distribute", "values", self.values, ("refuse", "agree"))
        check_choice("distribute", "halos", self.halos, HALOS)
        if not isinstance(self.as_sequential, bool):
            raise TypeError(f"distribute: as_sequential={self.as_sequential!r}; it has to be a bool")
        if isinstance(self.module, torch.nn.Module):
            refuse_distributed("distribute", self.module)
            unrecorded.refuse_model(self.module)
            self._requested = requested_splits(self.plan, self.module, self.grid)
            self._in_blocks = split_layouts(self.module, self._requested, self.grid, current_kind(OF_MODELS))
        super().check_options()
        forbid_submodule_calls(self.module)
        self._inputs = InputPartitions(self.input_partitions, self.module.forward, self.grid)
        skeleton = Skeleton(self.__dict__["_given"])
        self._builder = ProgramBuilder(skeleton, self.grid, self._requested, self.fallback, self.as_sequential,
                                       self.values == "agree", self.halos)  # fmt: skip
        self._programs = ProgramCache()
        self._snapshot: AttributeSnapshot | None = AttributeSnapshot(self.module, skeleton.model)
        self._in_memory: InMemory | None = None
        self.program = None

    def options_to_compare(self) -> dict[str, object]:
        """The shapes and ranks of the requested partitions, and words, which are the same on all ranks."""
        plan = {
            pattern: (request.shape, request.ranks) if isinstance(request, Grid) else request
            for pattern, request in self._builder.requested.items()
        }
        return {"plan": plan, "input_partitions": self._inputs.compared()}

    def layout_of_parameter(self, name: str, tensor: torch.Tensor) -> Layout:
        return self._in_blocks.get(name) or super().layout_of_parameter(name, tensor)

    @classmethod
    def from_sequential(
        cls,
        module: torch.nn.Module,
        P_x: PartitionLike,
        *partitions: PartitionLike,
        root: int | None = None,
        **options: object,
    ) -> Self:
        """The model over partitions, with the weights of one rank; by default of worker 0 of P_x."""
        make: Callable[..., Self] = cls
        layer = make(P_x, module, **options)
        if isinstance(module, torch.nn.Module):
            drop_own_caches(layer, layer._builder.skeleton)
            layer.take_weights(module, next(iter(layer.grid.ranks), 0) if root is None else root)
            memory.empty_pool()  # of messages as large as the weights
        return layer

    def calling_grids(self) -> list[Grid]:
        """All ranks: each of them returns the structure of the results."""
        return [self.grid.constructing_ranks()]

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Self:
        """Convert parameters and buffers, as ``to()`` and ``half()`` do; programs use the new ones."""
        super()._apply(fn, recurse)
        self._programs.clear()
        self._distdl_is_setup = False
        return self

    def __getstate__(self) -> dict[str, object]:
        """The state without programs, which belong to these parameters: a copy makes its own."""
        none: dict[str, object] = {"_programs": ProgramCache(), "program": None, "_snapshot": None, "_held": []}
        return self.__dict__ | none | {"_distdl_is_setup": False, "_placements": None}

    @property
    def output_partition(self) -> object:
        """The partitions of the results of the last call, in the structure that the model returns.

        None for a result that every rank has whole, such as a number.

        Raises:
            RuntimeError: before the first call.
        """
        if self.program is None:
            raise _NotCalledError
        placements = self.program.placements

        def partition(value: Value) -> Partition | None:
            at = placements[value]
            return Partition.of_grid(at.grid(self.grid), like=self.P_x) if isinstance(at, Blocks) else None

        return tree_map_only(Value, partition, self.program.plan.recording.results)

    def __getattr__(self, name: str) -> Any:
        """Look up the model's own attributes, then torch's, also after a property has raised an AttributeError."""
        if name == "output_partition":
            raise _NotCalledError
        own = vars(self.__dict__["module"]) if "module" in self.__dict__ else {}
        if name not in own:
            self.refuse_method(name)
        return own[name] if name in own else super().__getattr__(name)

    def __setattr__(self, name: str, value: Any) -> None:
        """Assign the model's own attributes, such as a temperature, to the model, which is recorded with them again."""
        module = self.__dict__.get("module")
        if module is not None and name in vars(module) and name not in vars(self):
            setattr(module, name, value)
        else:
            super().__setattr__(name, value)

    def vote_on(self, agreement: _core.LayerAgreement, args: tuple[object, ...]) -> bool:
        """Vote; with as_sequential, how the inputs are in memory counts as well."""
        changed = super().vote_on(agreement, args)
        if not self.as_sequential:
            return changed
        call = cast(ModuleCall, args[0])
        before, self._in_memory = self._in_memory, in_memory(self, self.placed(self._inputs, call), call)
        return changed or before != self._in_memory

    def beside_vote(self, args: tuple[object, ...], parameters: Sequence[torch.Tensor]) -> list[Applied]:
        if self.program is None or self.as_sequential or self._snapshot is None or self._snapshot.hooks:
            return []  # hooks may change parameters
        return self.program.beside_vote(tensors_in(args[0]), [held[leaf] for held, leaf in self._held])

    def set_up_for(self, args: tuple[object, ...]) -> None:
        """Find the program of this call, or make it."""
        if self._problem is not None:
            raise self._problem
        self.module.training = self.training  # it is no child of this module, which has the same children
        placed = self.placed(self._inputs, cast(ModuleCall, args[0]))
        inputs = [(input.blocks.shape, self.structure(input.workers, i)[0][1]) for i, input in enumerate(placed)]
        modes = tuple(module.training for module in self.known_modules())
        dtypes = tuple(parameter.dtype for parameter in self.parameters())  # a submodule may have been converted
        blocks = tuple(each.blocks for each in placed)
        state = blocks, tuple(inputs), dtypes, modes, self.autocast, self._frozen, str(self._in_memory)
        self._kind, self._described = (state, text_of_others(args[0]), self._changes), (inputs, placed)
        self._use_program(args[0], ())

    def _use_program(self, call: object, outcomes: tuple[object, ...]) -> None:
        """Find or make the program of this call, whose looks at values begin with these outcomes."""
        program = self._programs.find(self._kind, outcomes)
        if program is None:
            program = self._builder.build(self.module, call, *self._described, self._in_memory, self.layouts, outcomes)
            if not program.plan.recording.is_open:
                self._programs.keep(self._kind, program, call)
        self.program = program
        self._held = [place_of(self, "parameters", name) for name in program.parameters]  # compilers replace them

    @functools.cached_property
    def _modules_within(self) -> list[torch.nn.Module]:
        """The modules within, looked up once: that takes longer than many of their calls."""
        return [*self.modules()][1:]  # not this one, which would keep itself alive

    def known_modules(self) -> list[torch.nn.Module]:
        return [self, *self._modules_within]

    def changed_options(self) -> str:
        return ", ".join(self.own_changed_options())

    def _changed_within(self) -> list[str]:
        """No changes: the modules within are recorded. Refuses buffers of other shapes."""
        shapes = [buffer.shape for buffer in {id(buffer): buffer for buffer in self.buffers_in_use()}.values()]
        if self.grid.active and shapes != self._first_shapes:
            was, now = ([list(shape) for shape in both] for both in (self._first_shapes, shapes))
            raise ValueError(f"distribute: the buffers have shapes {now}, and had {was} when the model was distributed")
        return []

    def compared_each_call(self) -> str:
        """Modes, arguments that are no tensors, attributes that were assigned, and frozen parameters."""
        if self._snapshot is None:
            self._snapshot = AttributeSnapshot(self.module, self._builder.skeleton.model)
        try:
            self._changes, self._problem = self._snapshot.changes(), None
        except (TypeError, ValueError, NotImplementedError) as error:  # all ranks raise it, in their set-up
            self._changes, self._problem = str(error), error
        parameters = zip(self._parameter_names, self._declared_parameters(), strict=True)
        self._frozen = ", ".join(name for name, parameter in parameters if not parameter.requires_grad)
        frozen = self._frozen and f"with {self._frozen} frozen"
        return ", ".join(filter(None, (super().compared_each_call(), self._changes, frozen)))

    def buffers_in_use(self) -> list[torch.Tensor]:
        held = (vars(module)["_buffers"].values() for module in self.known_modules())
        return [buffer for buffers in held for buffer in buffers if buffer is not None]

    def _modes(self) -> str:
        modes = {module.training for module in self.known_modules()}
        return super()._modes() if len(modes) > 1 else "in training" if modes == {True} else "in evaluation"

    def compute(self, call: object) -> object:
        """Run the program of these tensors."""
        assert self._snapshot is not None
        outcomes = OutcomesOfCall()
        while True:
            program = cast(Program, self.program)
            self._snapshot.marks.put(program.plan.recording.tables)
            key = key_of_first_worker(self.grid) if program.is_random and not self.as_sequential else None
            try:
                return program(tensors_in(call), [held[leaf] for held, leaf in self._held], key, self._snapshot.hooks)
            except OtherOutcomeError as other:
                first = outcomes.of_first_looks(program.looks, other)
            with unseen_by_modes(), self.setting_up():
                self._use_program(call, first)

    def ask_for_gradients(self, result: object) -> None:
        """Let the results that have a derivative ask for gradients."""
        assert self.program is not None
        for tensor, (value, _) in zip(tree_leaves(result), self.program.results, strict=True):
            if isinstance(value, Value) and value.is_differentiable:
                _core.require_gradients(tensor)

    def extra_repr(self) -> str:
        """Options and the partition."""
        return f"P_x={self.P_x}, fallback={self.fallback!r}, as_sequential={self.as_sequential}"
