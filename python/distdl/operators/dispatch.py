"""How a call reaches its operator: at once, through ``torch.compile``, or through the transforms of ``torch.func``.

Called at once, an operator is a node of autograd made in C++. A compiler cannot look into such a node: it sees two
operators of torch's dispatcher, which state the shapes of their results and are each other's derivatives. The
transforms of ``torch.func`` see a ``torch.autograd.Function``.
"""

from __future__ import annotations

import itertools
import random
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, TypeAlias

import torch
from torch.utils._python_dispatch import _disable_current_modes

from distdl.collective.grid import belongs_to_its_job

if TYPE_CHECKING:
    from distdl import _core

Context: TypeAlias = torch.autograd.function.FunctionCtx

_is_compiling = torch.compiler.is_compiling
_transforms = torch._C._functorch.peek_interpreter_stack
_modes = torch._C._len_torch_dispatch_stack
_PROXY = torch._C._TorchDispatchModeKey.PROXY

_operators: weakref.WeakValueDictionary[int, Operator] = weakref.WeakValueDictionary()
# Operators in compiled programs are kept for ever: a program has their keys only, and may outlive their layers.
_compiled: set[Operator] = set()
# torch keeps compiled programs on disk, where a key of another process must not be found: the first key is random.
_keys = itertools.count(random.SystemRandom().getrandbits(52) << 10)


_PLAIN = torch.Tensor.__torch_dispatch__
_WITH_MEMORY = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)


def problem_without_memory(x: object) -> TypeError | None:
    """The error for a tensor of a class that wraps other tensors, or none: there are no bytes that MPI could send.

    Likewise for one of a class that carries out torch's operators itself: what it raises in the midst of a call, it
    would raise on this rank alone.
    """
    kind = type(x)
    if kind in _WITH_MEMORY:
        return None
    wraps = hasattr(x, "fake_mode") or hasattr(x, "__tensor_flatten__")
    if not wraps and getattr(kind, "__torch_dispatch__", _PLAIN) is _PLAIN:
        return None
    if (wraps and getattr(x, "layout", None) is not torch.strided) or torch._C._get_dispatch_mode(_PROXY) is not None:
        return None  # nested tensors and recorders are refused in the call
    why = "no memory of its own" if wraps else "a __torch_dispatch__ of its own"
    return TypeError(f"is a {kind.__name__}, which has {why}; it has to be a plain torch.Tensor")


class Started(Protocol):
    """A call that was started."""

    @property
    def name(self) -> str:
        """The name of the operator."""
        ...

    def wait(self) -> torch.Tensor:
        """The result. To be called once."""
        ...


class CompletedCall:
    """A call that start() has completed already."""

    def __init__(self, name: str, result: torch.Tensor) -> None:
        self.name, self._result = name, result

    def wait(self) -> torch.Tensor:
        return self._result


class Operator:
    """A C++ primitive, as Python calls it.

    Args:
        core: the primitive.
        lift: makes the operator that does the same for each element along a further first dimension; None if this
            operator itself does.
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
        """Apply the operator to this rank's tensor. Collective over the ranks of its partitions."""
        if _is_compiling():
            if not self.active:
                return x.clone()
            differentiated = torch.is_grad_enabled() and x.requires_grad
            result: torch.Tensor = torch.ops.distdl.apply(x, self._key, False, differentiated)
            return result
        if _transforms() is not None:
            return _Apply.apply(x, self, False) if self.active else x.clone()
        if type(x) is not torch.Tensor and (problem := problem_without_memory(x)) is not None and self.active:
            self.refuse(problem)
        if _modes() and torch._C._get_dispatch_mode(_PROXY) is None:  # a recorder is refused in the call
            # A first call makes a plan and the next one does not: modes that count operators would find fewer.
            with _disable_current_modes():
                return self.core(x)
        return self.core(x)

    def start(self, x: torch.Tensor) -> Started:
        """Begin to apply the operator; under a compiler or a transform, apply it. Collective like a call."""
        if _is_compiling() or _transforms() is not None:
            return CompletedCall(self.name, self(x))
        if type(x) is not torch.Tensor and (problem := problem_without_memory(x)) is not None and self.active:
            self.refuse(problem)
        return self.core.start(x)

    def plan(self, x: torch.Tensor) -> _core.PlannedOperator:
        """The operator for tensors of the structure of x, which takes no votes. Collective like a call.

        For a function with derivatives of its own, which agrees on each call itself. Raises ValueError on a rank that
        is in none of the partitions.
        """
        return self.core.plan(x)

    def refuse(self, problem: object) -> None:
        """Raise an error in this rank's input on all ranks of the partitions. This rank calls it in place of a call.

        Args:
            problem: an exception, or the input that cannot be sent.
        """
        self.core(problem)

    def adjoint(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Apply the adjoint to y, without autograd. Collective over the ranks of its partitions.

        Args:
            x: a tensor with the shape and dtype of the forward input.
            y: a tensor with the shape and dtype of the forward result.
        """
        return self.core.adjoint(x, y)

    def lifted(self) -> Operator:
        """This operator for tensors with a further first dimension. The first call is collective over the ranks."""
        if self._lift is None:
            return self
        if self._lifted is None:
            self._lifted = self._lift()
        return self._lifted

    def __deepcopy__(self, memo: dict[int, object]) -> Operator:
        return self  # it has no state that calls change

    def __reduce__(self) -> str | tuple[object, ...]:
        raise belongs_to_its_job(f"the operator of a {self.name}")


class Inactive(Operator):
    """An operator on a rank that is in none of its partitions, and knows nothing of them."""

    active = False
    name = "Clone"

    def __init__(self) -> None:
        """Not collective."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return a clone of ``x``."""
        if not isinstance(x, torch.Tensor):
            raise TypeError(f"the input is of type {type(x).__name__}; it has to be a torch.Tensor")
        return x.clone()

    def start(self, x: torch.Tensor) -> Started:
        """Clone ``x``."""
        return CompletedCall(self.name, self(x))

    def refuse(self, problem: object) -> None:
        """Raise the problem on this rank."""
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
    """vmap's rule: apply the lifted operator to the batch as the first dimension."""
    if dim is None:
        return call(x, operator), None
    x = x.movedim(dim, 0)
    y = call(x, operator.lifted())
    if y.shape[:1] != x.shape[:1]:  # a zero-volume result has no batch dimension
        y = y.new_zeros((x.shape[0], *y.shape))
    return y, 0


class VmapInfo(Protocol):
    """The information that torch passes to a vmap rule."""

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
        return _batched(operator, in_dims[0], x, lambda x, operator: _Apply.apply(x, operator, linear))


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

        return _batched(operator, in_dims[0], y, call)


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
# Compilers keep the order of operators with effects: the other ranks make the same calls in the same order.
for _name in ("distdl::apply", "distdl::apply_adjoint"):
    _library._register_effectful_op(_name, torch.library.EffectType.ORDERED)
