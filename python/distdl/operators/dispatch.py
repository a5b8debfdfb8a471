"""How a call reaches its operator: at once, through ``torch.compile``, or through the transforms of ``torch.func``.

Called at once, an operator is a node of autograd made in C++. A compiler cannot look into that: for it there are two
operators of torch's dispatcher, which say what comes out of what and are each other's derivatives. The transforms of
``torch.func`` ask a ``torch.autograd.Function``.
"""

from __future__ import annotations

import itertools
import random
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, TypeAlias

import torch

from distdl.collective.grid import belongs_to_its_job

if TYPE_CHECKING:
    from distdl import _core

Context: TypeAlias = torch.autograd.function.FunctionCtx

_is_compiling = torch.compiler.is_compiling
_transforms = torch._C._functorch.peek_interpreter_stack

_operators: weakref.WeakValueDictionary[int, Operator] = weakref.WeakValueDictionary()
_compiled: set[Operator] = set()  # for ever: programs know them by their keys alone, and may outlive their layers
# torch keeps compiled programs on disk; a key of another process must not be found there, so the first one is random.
_keys = itertools.count(random.SystemRandom().getrandbits(52) << 10)


class Started(Protocol):
    """A call that was started."""

    @property
    def name(self) -> str:
        """Of the operator."""
        ...

    def wait(self) -> torch.Tensor:
        """The result; to be asked for once."""
        ...


class CompletedCall:
    """What start() returns where it has done everything."""

    def __init__(self, name: str, result: torch.Tensor) -> None:
        self.name, self._result = name, result

    def wait(self) -> torch.Tensor:
        return self._result


class Operator:
    """A C++ primitive, as Python calls it.

    Args:
        core: the primitive.
        lift: makes the operator that does the same for each element along a further dimension, the first one; None if
            this one does.
    """

    def __init__(self, core: _core.Primitive, lift: Callable[[], Operator] | None = None) -> None:
        self.core = core
        self.active: bool = core.active
        self.name: str = core.name
        self._lift = lift
        self._lifted: Operator | None = None
        self._key = next(_keys)
        _operators[self._key] = self

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Apply it. Collective over the ranks of its partitions."""
        if _is_compiling():
            if not self.active:
                return x.clone()
            differentiated = torch.is_grad_enabled() and x.requires_grad
            result: torch.Tensor = torch.ops.distdl.apply(x, self._key, False, differentiated)
            return result
        if _transforms() is not None:
            return _Apply.apply(x, self, False) if self.active else x.clone()
        return self.core(x)

    def start(self, x: torch.Tensor) -> Started:
        """Begin to apply it; under a compiler or a transform, apply it."""
        if _is_compiling() or _transforms() is not None:
            return CompletedCall(self.name, self(x))
        return self.core.start(x)

    def refuse(self, problem: object) -> None:
        """Raise on all ranks of its partitions what is wrong with the input of this one. In place of a call.

        Args:
            problem: an exception, or what was passed and cannot travel.
        """
        self.core(problem)

    def adjoint(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Apply the adjoint to y, without autograd; x has the structure of the forward input. Collective."""
        return self.core.adjoint(x, y)

    def lifted(self) -> Operator:
        """This operator for tensors with a further dimension in front. Collective over the ranks, the first time."""
        if self._lift is None:
            return self
        if self._lifted is None:
            self._lifted = self._lift()
        return self._lifted

    def __deepcopy__(self, memo: dict[int, object]) -> Operator:
        return self  # nothing of it depends on who calls it

    def __reduce__(self) -> str | tuple[object, ...]:
        raise belongs_to_its_job(f"the operator of a {self.name}")


class Inactive(Operator):
    """An operator on a rank that knows nothing of its partitions: it is in none of them."""

    active = False
    name = "Clone"

    def __init__(self) -> None:
        """Make one; no other rank has to."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return a clone of ``x``."""
        if not isinstance(x, torch.Tensor):
            raise TypeError(f"the input is of type {type(x).__name__}; it has to be a torch.Tensor")
        return x.clone()

    def start(self, x: torch.Tensor) -> Started:
        """Clone ``x``."""
        return CompletedCall(self.name, self(x))

    def refuse(self, problem: object) -> None:
        """Raise it."""
        if isinstance(problem, Exception):
            raise problem
        self(problem)

    def adjoint(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Return a clone of ``y``."""
        return y.clone()

    def lifted(self) -> Operator:
        """This operator."""
        return self


Inputs: TypeAlias = tuple[torch.Tensor, Operator, object]
Batched: TypeAlias = tuple[torch.Tensor, int | None]


def _batched(
    operator: Operator, dim: int | None, x: torch.Tensor, call: Callable[[torch.Tensor, Operator], torch.Tensor]
) -> Batched:
    """vmap's rule: the lifted operator, on the batch as the first dimension."""
    if dim is None:
        return call(x, operator), None
    x = x.movedim(dim, 0)
    y = call(x, operator.lifted())
    if y.shape[:1] != x.shape[:1]:  # zero volume, without a batch
        y = y.new_zeros((x.shape[0], *y.shape))
    return y, 0


class VmapInfo(Protocol):
    """What vmap tells its rules."""

    batch_size: int


class _Apply(torch.autograd.Function):
    """A x, or its linear part."""

    @staticmethod
    def forward(x: torch.Tensor, operator: Operator, linear: bool) -> torch.Tensor:
        return operator.core.call_traced(x, linear, False)

    @staticmethod
    def setup_context(ctx: Context, inputs: Inputs, output: torch.Tensor) -> None:
        x, ctx.operator, _ = inputs
        ctx.sizes = x.shape

    @staticmethod
    def backward(ctx: Context, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return _Adjoint.apply(gradients[0], ctx.operator, ctx.sizes), None, None

    @staticmethod
    def jvp(ctx: Context, *tangents: torch.Tensor) -> torch.Tensor:
        return _Apply.apply(tangents[0], ctx.operator, True)

    @staticmethod
    def vmap(
        info: VmapInfo, in_dims: tuple[int | None, ...], x: torch.Tensor, operator: Operator, linear: bool
    ) -> Batched:
        return _batched(operator, in_dims[0], x, lambda x, operator: _Apply.apply(x, operator, linear))


class _Adjoint(torch.autograd.Function):
    """A* y, for an x of these sizes."""

    @staticmethod
    def forward(y: torch.Tensor, operator: Operator, sizes: Sequence[int]) -> torch.Tensor:
        return operator.core.adjoint(y.new_empty(()).expand(sizes), y)

    @staticmethod
    def setup_context(ctx: Context, inputs: Inputs, output: torch.Tensor) -> None:
        _, ctx.operator, ctx.sizes = inputs

    @staticmethod
    def backward(ctx: Context, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return _Apply.apply(gradients[0], ctx.operator, True), None, None

    @staticmethod
    def jvp(ctx: Context, *tangents: torch.Tensor) -> torch.Tensor:
        return _Adjoint.apply(tangents[0], ctx.operator, ctx.sizes)

    @staticmethod
    def vmap(
        info: VmapInfo, in_dims: tuple[int | None, ...], y: torch.Tensor, operator: Operator, sizes: Sequence[int]
    ) -> Batched:
        def call(y: torch.Tensor, operator: Operator) -> torch.Tensor:
            return _Adjoint.apply(y, operator, sizes if in_dims[0] is None else (info.batch_size, *sizes))

        return _batched(operator, in_dims[0], y, call)


# Order is part of what these do: the other ranks make the same calls in the same order.
_library = torch.library.Library("distdl", "DEF")
_library.define("apply(Tensor x, int operator, bool linear, bool differentiated) -> Tensor")
_library.define("apply_adjoint(Tensor y, int operator, SymInt[] sizes) -> Tensor")


@torch.library.impl(_library, "apply", "CompositeExplicitAutograd")
def _apply(x: torch.Tensor, operator: int, linear: bool, differentiated: bool) -> torch.Tensor:
    return _operators[operator].core.call_traced(x, linear, differentiated)


@torch.library.impl(_library, "apply_adjoint", "CompositeExplicitAutograd")
def _apply_adjoint(y: torch.Tensor, operator: int, sizes: Sequence[int]) -> torch.Tensor:
    return _operators[operator].core.adjoint(y.new_empty(()).expand(sizes), y)


@torch.library.register_fake("distdl::apply", lib=_library)
def _apply_fake(x: torch.Tensor, operator: int, linear: bool, differentiated: bool) -> torch.Tensor:
    _compiled.add(_operators[operator])
    sizes, dtype = _operators[operator].core.trace([int(size) for size in x.shape], x.dtype)
    return x.new_empty(sizes, dtype=dtype)


@torch.library.register_fake("distdl::apply_adjoint", lib=_library)
def _apply_adjoint_fake(y: torch.Tensor, operator: int, sizes: Sequence[int]) -> torch.Tensor:
    return y.new_empty(sizes)


def _keep_operator_and_sizes(ctx: Context, inputs: tuple[torch.Tensor, int, object], output: torch.Tensor) -> None:
    x, ctx.operator, *_ = inputs
    ctx.sizes = x.shape


def _backward_of_apply(ctx: Context, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    return torch.ops.distdl.apply_adjoint(gradient, ctx.operator, ctx.sizes), None, None, None


def _backward_of_adjoint(ctx: Context, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    differentiated = torch.is_grad_enabled() and gradient.requires_grad
    return torch.ops.distdl.apply(gradient, ctx.operator, True, differentiated), None, None


torch.library.register_autograd(
    "distdl::apply", _backward_of_apply, setup_context=_keep_operator_and_sizes, lib=_library
)
torch.library.register_autograd(
    "distdl::apply_adjoint", _backward_of_adjoint, setup_context=_keep_operator_and_sizes, lib=_library
)
# Compilers keep the order of what has effects: the other ranks make the same calls in the same order.
for _name in ("distdl::apply", "distdl::apply_adjoint"):
    _library._register_effectful_op(_name, torch.library.EffectType.ORDERED)
