"""Calls of operators: directly, through ``torch.compile``, or through the transforms of ``torch.func``.

A direct call makes a node of autograd in C++. Compilers cannot trace such a node: they see two operators of torch's
dispatcher, with shape functions, which are each other's derivatives. The transforms of ``torch.func`` see a
``torch.autograd.Function``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, TypeAlias, cast

import torch

from distdl.partitions.grid import belongs_to_its_job
from distdl.torch_compat.autograd import Context
from distdl.torch_compat.compilers import new_key, of_key
from distdl.torch_compat.modes import is_compiling, unseen_by_modes
from distdl.torch_compat.operators import keep_in_order
from distdl.torch_compat.transforms import innermost_transform

if TYPE_CHECKING:
    from distdl import _core


# Operators in compiled programs are kept forever: programs have only keys, and may outlive the layers.
_compiled: set[Operator] = set()


Applied: TypeAlias = "tuple[_core.Primitive, torch.Tensor]"  # an operator, and the tensor that it takes


class Started(Protocol):
    """A call that was started."""

    @property
    def name(self) -> str: ...

    def wait(self) -> torch.Tensor:
        """Return the result. Called once."""
        ...


class CompletedCall:
    """A call that ``start`` has completed."""

    def __init__(self, name: str, result: torch.Tensor) -> None:
        self.name, self._result = name, result

    def wait(self) -> torch.Tensor:
        return self._result


class Operator:
    """A C++ primitive, as Python calls it.

    Args:
        core: the primitive.
        lift: makes the operator for tensors with a further first dimension; None if this operator takes them, too.
    """

    def __init__(self, core: _core.Primitive, lift: Callable[[], Operator] | None = None) -> None:
        self.core = core
        self.active: bool = core.active
        self.name: str = core.name
        self._lift = lift
        self._lifted: Operator | None = None
        self._key = new_key(self)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Apply the operator to this rank's tensor. Collective over the ranks of its partitions."""
        if is_compiling():
            if not self.active:
                return x.clone()
            differentiated = torch.is_grad_enabled() and x.requires_grad
            result: torch.Tensor = torch.ops.distdl.apply(x, self._key, False, differentiated)
            return result
        if innermost_transform() is not None:
            return _Apply.apply(x, self, False) if self.active else x.clone()
        with unseen_by_modes():  # the first call makes a plan
            return self.core(x)

    def start(self, x: torch.Tensor) -> Started:
        """Begin to apply the operator; under a compiler or a transform, apply it. Collective like a call."""
        if is_compiling() or innermost_transform() is not None:
            return CompletedCall(self.name, self(x))
        return self.core.start(x)

    def plan(self, x: torch.Tensor) -> _core.PlannedOperator:
        """The operator for tensors with the structure of x, without votes. Collective like a call.

        For functions that define derivatives and vote on each call. Raises ValueError on a rank outside of all
        partitions.
        """
        return self.core.plan(x)

    def refuse(self, problem: object) -> None:
        """Raise an error in this rank's input on all ranks of the partitions, in place of a call.

        Args:
            problem: an exception, or the input that cannot be sent.
        """
        self.core(problem)

    def adjoint(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Apply the adjoint to y, without autograd; x is like the forward input. Collective like a call."""
        return self.core.adjoint(x, y)

    def lifted(self) -> Operator:
        """The operator for tensors with a further first dimension. The first call is collective over the ranks."""
        if self._lift is None:
            return self
        if self._lifted is None:
            self._lifted = self._lift()
        return self._lifted

    def __deepcopy__(self, memo: dict[int, object]) -> Operator:
        return self  # calls change no state

    def __reduce__(self) -> str | tuple[object, ...]:
        raise belongs_to_its_job(f"the operator of a {self.name}")


class Inactive(Operator):
    """An operator on a rank that does not know its partitions."""

    active = False
    name = "Clone"

    def __init__(self) -> None:
        """Not collective."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if not isinstance(x, torch.Tensor):
            raise TypeError(f"the input is of type {type(x).__name__}; it has to be a torch.Tensor")
        return x.clone()

    def start(self, x: torch.Tensor) -> Started:
        return CompletedCall(self.name, self(x))

    def refuse(self, problem: object) -> None:
        if isinstance(problem, Exception):
            raise problem
        self(problem)

    def adjoint(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return y.clone()

    def lifted(self) -> Operator:
        return self


Inputs: TypeAlias = tuple[torch.Tensor, Operator, object]
Batched: TypeAlias = tuple[torch.Tensor, int | None]


def _apply_to_batch(
    operator: Operator, dim: int | None, x: torch.Tensor, call: Callable[[torch.Tensor, Operator], torch.Tensor]
) -> Batched:
    """The rule of vmap: apply the lifted operator with the batch as the first dimension."""
    if dim is None:
        return call(x, operator), None
    x = x.movedim(dim, 0)
    y = call(x, operator.lifted())
    if y.shape[:1] != x.shape[:1]:  # a zero-volume result has no batch dimension
        y = y.new_zeros((x.shape[0], *y.shape))
    return y, 0


class VmapInfo(Protocol):
    batch_size: int


class _Apply(torch.autograd.Function):
    """A x for an operator A, or its linear part."""

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
        return _apply_to_batch(operator, in_dims[0], x, lambda x, operator: _Apply.apply(x, operator, linear))


class _Adjoint(torch.autograd.Function):
    """A* y for an operator A whose input x has these sizes."""

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

        return _apply_to_batch(operator, in_dims[0], y, call)


_distdl_library = torch.library.Library("distdl", "DEF")
_distdl_library.define("apply(Tensor x, int operator, bool linear, bool differentiated) -> Tensor")
_distdl_library.define("apply_adjoint(Tensor y, int operator, SymInt[] sizes) -> Tensor")


def _operator_of(key: int) -> Operator:
    return cast(Operator, of_key(key))


@torch.library.impl(_distdl_library, "apply", "CompositeExplicitAutograd")
def _apply(x: torch.Tensor, operator: int, linear: bool, differentiated: bool) -> torch.Tensor:
    return _operator_of(operator).core.call_traced(x, linear, differentiated).contiguous()  # as compilers are told


@torch.library.impl(_distdl_library, "apply_adjoint", "CompositeExplicitAutograd")
def _apply_adjoint(y: torch.Tensor, operator: int, sizes: Sequence[int]) -> torch.Tensor:
    return _operator_of(operator).core.adjoint(y.new_empty(()).expand(sizes), y).contiguous()


@torch.library.register_fake("distdl::apply", lib=_distdl_library)
def _apply_fake(x: torch.Tensor, operator: int, linear: bool, differentiated: bool) -> torch.Tensor:
    traced = _operator_of(operator)
    _compiled.add(traced)
    sizes, dtype = traced.core.trace([int(size) for size in x.shape], x.dtype)
    return x.new_empty(sizes, dtype=dtype)


@torch.library.register_fake("distdl::apply_adjoint", lib=_distdl_library)
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
    "distdl::apply", _backward_of_apply, setup_context=_keep_operator_and_sizes, lib=_distdl_library
)
torch.library.register_autograd(
    "distdl::apply_adjoint", _backward_of_adjoint, setup_context=_keep_operator_and_sizes, lib=_distdl_library
)
# Compilers keep the order of operators with effects, which has to be the same on all ranks.
for _name in ("distdl::apply", "distdl::apply_adjoint"):
    keep_in_order(_distdl_library, _name)
