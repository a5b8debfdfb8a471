"""A model of torch over partitions, in one call."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import zip_longest
from typing import Any, Self, cast

import torch

import distdl.nn
from distdl.models.capture import unrecorded
from distdl.models.capture.assignments import HOOKS, AttributeSnapshot
from distdl.models.capture.listing import listing
from distdl.models.capture.memory_order import most_informative_block, order_of
from distdl.models.capture.recording import Recording, Value
from distdl.models.capture.skeleton import Skeleton
from distdl.models.operations.placement import Blocks, input_placement
from distdl.models.plan.planning import Plan
from distdl.models.rules import RULES
from distdl.models.rules.applied_layer import twin_of
from distdl.models.run.buffers import Buffers
from distdl.models.run.program import Program
from distdl.models.submodule_calls import forbid_submodule_calls
from distdl.modules.graph import ask_for_gradients
from distdl.modules.module import refuse_distributed
from distdl.nn.base.compile.calls import place_of
from distdl.nn.base.guards import Observation
from distdl.nn.base.layer import Layer
from distdl.nn.base.random_numbers import draw_key
from distdl.nn.local import Local
from distdl.partitions.comparison import gather_or_raise
from distdl.partitions.construction import PartitionLike, constructor, grid_of
from distdl.partitions.grid import Grid
from distdl.partitions.partition import Partition
from distdl.torch_compat.layers import has_global_hooks
from distdl.torch_compat.trees import tree_flatten, tree_map_only

__all__ = ["DistributedModel", "distribute"]

_FALLBACKS = ("error", "gather")
_MOST_PROGRAMS = 16


@constructor
def distribute(
    model: torch.nn.Module,
    P_x: PartitionLike,
    plan: Mapping[str, PartitionLike] | None = None,
    fallback: str = "error",
    as_sequential: bool = False,
) -> DistributedModel:
    """The model over partitions: it takes blocks of the input, and gives blocks of what the sequential model gives.

    Args:
        model: any ``torch.nn.Module`` whose computation does not depend on the values of tensors. It is copied, and
            remains as it is. The same on all ranks but for its weights, of which those of worker 0 count.
        P_x: how the inputs are split, with as many dimensions as they have, such as ``[1, 1, 2, 2]``.
        plan: the partitions of certain modules, by their names or by patterns such as ``"layer[34].*"``, with ranks of
            P_x. A partition with as many dimensions as a tensor says how it is split, if the operation can be split
            so; other operations are split as moves the least among its workers. What differs is moved at the edges.
            The innermost module counts, and of several patterns for it the last. Parameters are held as without a
            plan, and travel to all workers.
        fallback: what becomes of operations that cannot be split: "error" lists all of them before anything is
            communicated, "gather" computes them on one worker.
        as_sequential: draw the random numbers that the model draws in one process with the same seed, for dropout and
            all else. Every rank draws those of whole tensors, and the generators of all ranks have to be in step.
            torch draws in the order of memory: inputs count as they are in the blocks, such as in channels_last. To
            know the order of other tensors, the first call runs each operation once with zeros on every rank.

    Random numbers are functions of the seed, the call and the index in the whole tensor: the same for every partition
    and number of ranks. A call that draws any takes one number from torch's default generator, on every rank; that of
    worker 0 decides. With ``as_sequential=True`` they are those of torch.

    Returns:
        A module with the same parameters by the same names, of which each rank has its part: see
        :func:`distdl.parameter_layout`.

    Raises:
        TypeError, ValueError: on all ranks, if an argument is not as described.
        NotImplementedError: on all ranks, in the first call, if the model looks at the values of a tensor, or an
            operation cannot be split.

    Collective over the communicator that P_x comes from, like each call of the result.
    """
    return DistributedModel.from_sequential(model, P_x, plan=plan, fallback=fallback, as_sequential=as_sequential)


class _NotCalledError(RuntimeError, AttributeError):
    """Also an AttributeError, so that tools which look through all attributes pass over it: torch.jit.trace does."""

    def __init__(self) -> None:
        super().__init__("distribute: the output_partition is known after the first call of the model")


class DistributedModel(Local):
    """A model over partitions, which :func:`distdl.distribute` makes.

    Shape:
        Tensors with as many dimensions as P_x, in any blocks; and tensors with fewer dimensions, such as labels or
        times of diffusion, which each worker passes whole: the values of worker 0 count, and it receives the gradients.
        What the model returns, in its own structure.

    Attributes:
        module: a copy of the model, whose parameters and buffers are this module's own.
        program: what the last call did; None before the first call.
    """

    plan: Mapping[str, PartitionLike] | None
    fallback: str
    as_sequential: bool
    outputs = 1
    needs_one_name = False
    brings_parameters = False  # programs do, each just before its first use
    program: Program | None
    _problem: Exception | None  # for which the model cannot be recorded again

    def __init__(
        self,
        P_x: PartitionLike,
        module: torch.nn.Module,
        plan: Mapping[str, PartitionLike] | None = None,
        fallback: str = "error",
        as_sequential: bool = False,
    ) -> None:
        Layer.__init__(self, locals())

    # Constructing

    def check_options(self) -> None:
        if self.fallback not in _FALLBACKS:
            raise ValueError(f"distribute: fallback={self.fallback!r}; it must be one of {list(_FALLBACKS)}")
        if not isinstance(self.as_sequential, bool):
            raise TypeError(f"distribute: as_sequential={self.as_sequential!r}; it has to be a bool")
        if isinstance(self.module, torch.nn.Module):
            refuse_distributed("distribute", self.module)
            unrecorded.refuse_model(self.module)
        super().check_options()
        forbid_submodule_calls(self.module)
        self._asked = self._grids_of_plan()
        self._skeleton = Skeleton(self.__dict__["_given"], self.P_x.device)
        self._programs: dict[tuple[object, ...], Program] = {}
        self._assigned: AttributeSnapshot | None = AttributeSnapshot(self.module)
        self._orders: list[list[int]] | None = None
        self.program = None

    def options_to_compare(self) -> dict[str, object]:
        """The plan without what is this rank's own in a partition."""
        return {"plan": {pattern: (grid.shape, grid.ranks) for pattern, grid in self._asked.items()}}

    def _grids_of_plan(self) -> dict[str, Grid]:
        if not isinstance(self.plan, Mapping | None):
            raise TypeError(f"distribute: plan is a {type(self.plan).__name__}; it has to be a dict of partitions")
        names = [name for name, _ in self.module.named_modules()]
        grids = {}
        for pattern, partition in (self.plan or {}).items():
            if not isinstance(partition, Partition | Grid):
                raise TypeError(f"distribute: plan[{pattern!r}]={partition!r}; it has to be a distdl.Partition")
            if not any(fnmatchcase(name, str(pattern)) for name in names):
                raise ValueError(
                    f"distribute: plan[{pattern!r}]: no module of the model has such a name; see named_modules()"
                )
            grid = grid_of(partition)
            if grid.known and self.grid.known and not set(grid.ranks) <= set(self.grid.ranks):
                raise ValueError(
                    f"distribute: plan[{pattern!r}] has ranks {list(grid.ranks)}, and P_x {list(self.grid.ranks)}; the "
                    "workers of a plan are workers of P_x"
                )
            grids[str(pattern)] = grid
        return grids

    @classmethod
    def from_sequential(
        cls,
        module: torch.nn.Module,
        P_x: PartitionLike,
        *partitions: PartitionLike,
        root: int | None = None,
        **options: object,
    ) -> Self:
        """The model over partitions, with the weights of one rank: of worker 0 of P_x, which need not be rank 0."""
        make: Callable[..., Self] = cls
        layer = make(P_x, module, **options)
        if isinstance(module, torch.nn.Module):
            layer.take_weights(module, next(iter(layer.grid.ranks), 0) if root is None else root)
        return layer

    def calling_grids(self) -> list[Grid]:
        """All ranks: each of them returns the structure of the results."""
        return [self.grid.constructing_ranks()]

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Self:
        """Convert parameters and buffers, as ``to()`` and ``half()`` do; programs use the new ones."""
        super()._apply(fn, recurse)
        self._programs.clear()
        self.is_set_up = False
        return self

    def __getstate__(self) -> dict[str, object]:
        """Without programs, which belong to these parameters: a copy makes its own."""
        made: dict[str, object] = {
            "_programs": {},
            "program": None,
            "_assigned": None,
            "_held": [],
            "is_set_up": False,
        }
        return self.__dict__ | made

    @property
    def output_partition(self) -> object:
        """How the results of the last call are split, in the structure that the model returns.

        Raises:
            RuntimeError: before the first call.
        """
        if self.program is None:
            raise _NotCalledError
        places = self.program.places
        return tree_map_only(
            Value,
            lambda value: Partition.of_grid(places[value].grid(self.grid), like=self.P_x),
            self.program.plan.recording.results,
        )

    def __getattr__(self, name: str) -> Any:
        """Look up the model's own attributes, then torch's, also after a property has raised an AttributeError."""
        if name == "output_partition":
            raise _NotCalledError
        own = vars(self.__dict__["module"]) if "module" in self.__dict__ else {}
        return own[name] if name in own else super().__getattr__(name)

    def __setattr__(self, name: str, value: Any) -> None:
        """Assign the model's own attributes, such as a temperature, to the model, which is recorded with them again."""
        module = self.__dict__.get("module")
        if module is not None and name in vars(module) and name not in vars(self):
            setattr(module, name, value)
        else:
            super().__setattr__(name, value)

    # The modules of a Sequential, by their numbers

    def _container(self) -> torch.nn.Sequential:
        if hasattr(type(self.module), "__getitem__"):
            return cast(torch.nn.Sequential, self.module)
        raise TypeError(f"distribute: a {type(self.module).__name__} has no modules by numbers or keys")

    def __getitem__(self, index: int) -> torch.nn.Module:
        """A module with its parts of parameters, to freeze it or to give it to an optimizer. Calling it raises."""
        return self._container()[index]

    def __len__(self) -> int:
        return len(self._container())

    def __iter__(self) -> Iterator[torch.nn.Module]:
        return iter(self._container())

    def __bool__(self) -> bool:
        return True  # also of a model that cannot be counted

    # Call

    def vote_on(self, observed: Observation, args: tuple[object, ...]) -> bool:
        """Also where the order of the inputs in memory matters, and is another one."""
        changed = super().vote_on(observed, args)
        if not self.as_sequential:
            return changed
        before, self._orders = self._orders, self._orders_of(args[0])
        return changed or before != self._orders

    def _orders_of(self, call: object) -> list[list[int]]:
        """The orders in which the dimensions of the inputs are in memory, as far as the workers' blocks show them."""
        leaves = [leaf for leaf in tree_flatten(call)[0] if isinstance(leaf, torch.Tensor)]
        all_ranks = self.grid.constructing_ranks()
        told = [json.loads(text) for text in all_ranks.gather(json.dumps([*map(order_of, leaves)]).encode())]
        by_worker = [told[all_ranks.ranks.index(rank)] for rank in self.grid.ranks]
        orders = []
        for i in range(len(leaves)):
            shapes = [shape for shape, _ in self.structure(self.grid, i)]
            whole = [sum(sizes) for sizes in self._arrived(i).block_sizes]
            orders.append(by_worker[most_informative_block(shapes, whole)][i])
        return orders

    def set_up_for(self, args: tuple[object, ...]) -> None:
        """Find the program of this call, or make it."""
        if self._problem is not None:
            raise self._problem
        self.module.training = self.training  # it is none of this module's children, which are its own ones
        leaves = [leaf for leaf in tree_flatten(args[0])[0] if isinstance(leaf, torch.Tensor)]
        arrived, inputs = [], []
        for i in range(len(leaves)):
            arrived.append(self._arrived(i))
            inputs.append((arrived[i].shape, self.structure(self.grid, i)[0][1]))
        modes = tuple(module.training for module in self.known_modules())
        dtypes = tuple(parameter.dtype for parameter in self.parameters())  # a module within may have been converted
        call = self._shown_call(args[0])
        key = (tuple(arrived), tuple(inputs), dtypes, modes, self.autocast, call, self._changes, self._frozen,
               str(self._orders))  # fmt: skip
        if key not in self._programs:
            self._programs[key] = self._planned(args[0], inputs, arrived)
            if len(self._programs) > _MOST_PROGRAMS:
                del self._programs[next(iter(self._programs))]
        self.program = self._programs[key]
        self._held = [place_of(self, "parameters", name) for name in self.program.parameters]

    def _arrived(self, i: int) -> Blocks:
        """Where a tensor of the call is: on worker 0 if it has fewer dimensions than P_x."""
        shapes = [tuple(shape) for shape, _ in self.structure(self.grid, i)]
        if any(len(shape) >= self.grid.dim for shape in shapes):
            return Blocks(self.grid.ranks, tuple(map(tuple, self.blocks(self.grid, i))))
        if len(set(shapes)) > 1:
            raise ValueError(
                f"distribute: tensor {i} of the call has fewer dimensions than P_x, so that each worker passes the "
                f"whole of it; its shapes are {[list(shape) for shape in shapes]}"
            )
        return Blocks(self.grid.ranks[:1], tuple((n,) for n in shapes[0]))

    @staticmethod
    def _shown_call(call: object) -> str:
        """The arguments that are no tensors, which all ranks have compared."""
        leaves, structure = tree_flatten(call)
        return f"{structure} {[leaf for leaf in leaves if not isinstance(leaf, torch.Tensor)]}"

    @functools.cached_property
    def _modules_within(self) -> list[torch.nn.Module]:
        """Found once: programs belong to them, and looking for them takes longer than many of their calls."""
        return [*self.modules()][1:]  # not this one, which would keep itself alive

    def known_modules(self) -> list[torch.nn.Module]:
        return [self, *self._modules_within]

    def changed_options(self) -> str:
        return ", ".join(self.own_changed_options())

    def _changed_within(self) -> list[str]:
        """Nothing: what the modules within do was recorded, for buffers of these shapes."""
        shapes = [buffer.shape for buffer in {id(buffer): buffer for buffer in self.buffers_in_use()}.values()]
        if self.grid.active and shapes != self._first_shapes:
            was, now = ([list(shape) for shape in both] for both in (self._first_shapes, shapes))
            raise ValueError(f"distribute: the buffers have shapes {now}, and had {was} when the model was distributed")
        return []

    def compared_each_call(self) -> str:
        """Modes, what is no tensor in the call, what was assigned to modules, and which parameters are frozen."""
        if self._assigned is None:
            self._assigned = AttributeSnapshot(self.module)
        try:
            self._changes, self._problem = self._assigned.changes(), None
        except (TypeError, ValueError, NotImplementedError) as error:  # all ranks raise it, in their set-up
            self._changes, self._problem = str(error), error
        parameters = zip(self._parameter_names, self._declared_parameters(), strict=True)
        self._frozen = ", ".join(name for name, parameter in parameters if not parameter.requires_grad)
        differences = (super().compared_each_call(), self._changes, self._frozen and f"with {self._frozen} frozen")
        return ", ".join(filter(None, differences))

    def buffers_in_use(self) -> list[torch.Tensor]:
        held = (vars(module)["_buffers"].values() for module in self.known_modules())
        return [buffer for buffers in held for buffer in buffers if buffer is not None]

    def _modes(self) -> str:
        modes = {module.training for module in self.known_modules()}
        return super()._modes() if len(modes) > 1 else "in training" if modes == {True} else "in evaluation"

    def _planned(
        self, call: object, inputs: Sequence[tuple[tuple[int, ...], torch.dtype]], arrived: Sequence[Blocks]
    ) -> Program:
        self._skeleton.follow(self.module)
        placed = [input_placement(self.grid.ranks, self.grid.shape, shape) for shape, _ in inputs]
        among = self.grid.among(self.grid.constructors)
        with torch.random.fork_rng(devices=[]):  # the layers draw first values, which are never used
            planned = functools.partial(
                Plan, base=among, inputs=placed, fallback=self.fallback, as_sequential=self.as_sequential,
                asked=self._asked,
            )  # fmt: skip
            plan = planned(self._recorded(call, inputs))
            if self.as_sequential and any(step.operation.draw is not None for step in plan.steps):
                plan = planned(self._recorded(call, inputs, real_strides=True))  # numbers are drawn in their order
            plan.refuse_unfollowed()
            return Program(plan, arrived, Buffers(self.module), self.layouts)

    def _recorded(
        self, call: object, inputs: Sequence[tuple[tuple[int, ...], torch.dtype]], real_strides: bool = False
    ) -> Recording:
        """Record the model, and compare the recordings: the programs of all ranks have to fit each other."""
        made: list[Recording] = []

        def listed() -> bytes:
            record = torch.compiler.disable(self._skeleton.record)  # compilers may be looking on
            made.append(record(call, inputs, self._key_of_layer, self._orders, real_strides))
            return "\n".join(listing(made[0])).encode()

        all_ranks = self.grid.constructing_ranks()
        texts = [text.decode().split("\n") for text in gather_or_raise("distribute", all_ranks, listed)]
        for rank, lines in zip(all_ranks.ranks, texts, strict=True):
            if lines != texts[0]:
                call, other = next(
                    pair for pair in zip_longest(texts[0], lines, fillvalue="nothing") if len({*pair}) > 1
                )
                raise ValueError(
                    f"distribute: the model has to be the same on all ranks; rank {all_ranks.ranks[0]} computes {call}, "
                    f"and rank {rank} {other}"
                )
        return made[0]

    def _key_of_layer(self, module: torch.nn.Module) -> str:
        """Attention with dropout draws numbers of its own; those of one process, what it calls."""
        draws = isinstance(module, torch.nn.MultiheadAttention) and module.training and module.dropout
        return "" if draws and self.as_sequential else key_of_layer(module)

    def compute(self, call: object) -> object:
        """Run the program of these tensors."""
        assert self.program is not None
        tensors = [leaf for leaf in tree_flatten(call)[0] if isinstance(leaf, torch.Tensor)]
        key = self._drawn_key() if self.program.is_random and not self.as_sequential else None
        parameters = [held[leaf] for held, leaf in self._held]  # compiled programs put others in their places
        return self.program(tensors, parameters, key)

    def ask_for_gradients(self, result: object) -> None:
        """Let the results that have a derivative ask for gradients."""
        assert self.program is not None
        for tensor, (value, _) in zip(tree_flatten(result)[0], self.program.results, strict=True):
            if isinstance(value, Value) and value.is_differentiable:
                ask_for_gradients(tensor)

    def _drawn_key(self) -> int:
        """A number from torch's default generator on every rank, of which that of worker 0 counts."""
        all_ranks = self.grid.constructing_ranks()
        drawn = all_ranks.gather(draw_key().to_bytes(8, "little"))
        return int.from_bytes(drawn[all_ranks.ranks.index(self.grid.ranks[0])], "little")

    def extra_repr(self) -> str:
        """Options and the partition."""
        return f"P_x={self.P_x}, fallback={self.fallback!r}, as_sequential={self.as_sequential}"


def key_of_layer(module: torch.nn.Module) -> str:
    """The name by which rules know a module as one operation, whatever it calls; "" if they do not."""
    own = vars(module)
    if any(own[name] for name in HOOKS) or hasattr(module, "parametrizations") or has_global_hooks():
        return ""  # there is more in the call than the layer
    if any(callable(getattr(type(module), name, None)) for name in own):
        return ""  # such as a forward() of its own
    if twin_of(module) is None:
        return ""
    known = (kind.__name__ for kind in type(module).__mro__ if kind in distdl.nn.SEQUENTIAL)
    return next((name for name in known if name in RULES), "")
