"""The common part of all losses: checks, and the sum of the workers' losses on every rank."""

from __future__ import annotations

import functools
import inspect
import math
import zlib
from collections.abc import Callable, Sequence
from typing import Annotated, ClassVar, TypeAlias, cast

import torch
from typing_extensions import dataclass_transform

from distdl import _core, operators
from distdl.modules.graph import empty_result, reshape_empty
from distdl.nn.base.option_types import Check, LayerClass, must, option, with_options
from distdl.nn.base.options import check_choice
from distdl.nn.base.precision import wide
from distdl.nn.base.value_checks import CheckedLayer
from distdl.nn.base.voted_layer import Described
from distdl.nn.loss.documentation import with_sections
from distdl.parameters.transport import zero_of
from distdl.partitions.grid import Grid


def _reduction(layer: Loss, value: str, name: str) -> str:
    check_choice(type(layer).__name__, name, value, layer.reductions)
    return value


_is_tensor = must(lambda value: isinstance(value, torch.Tensor), "be a torch.Tensor", TypeError)
Reduction: TypeAlias = Annotated[str, Check(_reduction)]
Weight: TypeAlias = Annotated[torch.Tensor, _is_tensor] | None


class Loss(CheckedLayer):
    """A loss of partitioned tensors: a quotient of two sums over all workers.

    Every rank gets the value, and every rank calls ``backward()``. The gradient flows from worker 0's value alone, so
    that the loss counts once, not once for each rank; other values only bring their ranks into the backward pass.

    A call runs as :class:`distdl.nn.Layer` describes: :meth:`set_up` checks what all workers passed, then
    :meth:`compute` adds up the losses of each worker's blocks.

    Attributes:
        function: the function of torch.nn.functional that is applied to a worker's blocks; its options have the
            layer's names.
        weights: the options that are tensors, whole and equal on all ranks.
        weights_are_converted: whether weights are converted to the dtype of the input.
        reductions: the values of ``reduction``.
        integer_arguments: the arguments that may be integers.
        has_forward_mode: whether torch has forward derivatives of ``function``.
    """

    error = ValueError
    tensors: ClassVar[tuple[str, ...]] = ("input", "target")
    function: ClassVar[Callable[..., torch.Tensor]]
    weights: ClassVar[tuple[str, ...]] = ()
    weights_are_converted: ClassVar[bool] = False
    reductions: ClassVar[tuple[str, ...]] = ("mean", "sum", "none")
    integer_arguments: ClassVar[tuple[str, ...]] = ()
    shapes: ClassVar[str] = ""
    has_forward_mode: ClassVar[bool] = True
    reduction: Reduction
    axis: int | None = None  # the dimension (of classes or features) over which each loss sums

    # Options

    def check_options(self) -> None:
        for weight in self.weights:
            self.register_buffer(weight, self.passed[weight])
        if self.grid.known:
            self.check_grid()
            self._probe_dtype(
                [torch.int64 if name in self.integer_arguments else torch.float32 for name in self.tensors]
            )

    def check_grid(self) -> None:
        """Check the shape of P_x, and choose ``axis``."""

    def options_to_compare(self) -> dict[str, object]:
        return {name: _summary(getattr(self, name)) for name in self.weights}

    def arguments(self, tensors: Sequence[torch.Tensor]) -> dict[str, object]:
        """The options of ``function``, with the part of each weight for these blocks."""
        arguments = {name: getattr(self, name) for name in self.options if name != "reduction"}
        for name in self.weights:
            arguments[name] = None if arguments[name] is None else self.weight_of(name, tensors)
        return arguments

    def converts_weights(self, dtypes: Sequence[torch.dtype]) -> bool:
        """Whether weights are converted to the dtype of the input, for tensors of these dtypes."""
        return self.weights_are_converted

    def weight_of(self, name: str, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        """The part of a weight for this worker's blocks."""
        return getattr(self, name)

    def samples(self, dtypes: Sequence[torch.dtype]) -> tuple[torch.Tensor, ...]:
        """Inputs of a single element, to try ``function`` with; the caller converts them."""
        return (torch.full((1,) * self.grid.dim, 0.5, dtype=torch.float64, device="cpu"),) * len(self.tensors)

    def _probe_dtype(self, dtypes: Sequence[torch.dtype], device: torch.device | None = None) -> torch.dtype:
        """The dtype of the result for inputs of these dtypes. Raises errors of torch for dtypes and options."""
        samples = [sample.to(device, dtype) for sample, dtype in zip(self.samples(dtypes), dtypes, strict=True)]
        options = self.arguments(())
        for name in self.weights:
            if options[name] is not None:
                weight = getattr(self, name)
                dtype = samples[0].dtype if self.converts_weights(dtypes) else weight.dtype
                shape = (1,) * min(weight.dim(), self.grid.dim)
                options[name] = torch.ones(shape, dtype=dtype, device=samples[0].device)
        return type(self).function(*samples, **options, reduction="none").dtype

    # Set-up

    def prepare(self) -> None:
        grid = self.grid
        ranks = grid.constructing_ranks()
        self._sum_of_all = operators.all_sum_reduce(ranks, [0]).core if ranks.known else None
        self._splits = self.axis is not None and grid.known and grid.shape[self.axis] > 1
        self._dtype = torch.float32
        if self.axis is not None and self._splits:
            self._to_first_blocks = operators.sum_reduce(grid, grid.first_along([self.axis]))

    def calling_grids(self) -> list[Grid]:
        return [self.grid.constructing_ranks()]

    def local_error(self, inputs: Sequence[object]) -> str:
        """Call :meth:`problem_of`, for any arguments."""
        tensors = [tensor for tensor in inputs if isinstance(tensor, torch.Tensor)]
        if len(tensors) < len(self.tensors):
            return ""
        try:
            return self.problem_of(*tensors)
        except (RuntimeError, TypeError, IndexError) as error:  # e.g. a sparse tensor, or shapes that do not match
            return f"has values that cannot be compared: {error}"

    def problem_of(self, *tensors: torch.Tensor) -> str:
        """The error in the values of this worker's tensors, or "". Called before each call of the layer."""
        return ""

    def set_up_for(self, args: tuple[object, ...]) -> None:
        self._device = next((tensor.device for tensor in args if isinstance(tensor, torch.Tensor)), None)
        super().set_up_for(args)

    def set_up(self) -> None:
        workers = list(zip(*(self.structure(self.grid, i) for i in range(len(self.tensors))), strict=True))
        first = [dtype for _, dtype in workers[0]]
        for worker, described in enumerate(workers):
            if [dtype for _, dtype in described] != first:
                why = f"worker 0 has {', '.join(map(str, first))}: all workers must have the same dtypes"
            else:
                why = self._wrong_dtype(described) or self.why_not(*described)
            if why:
                shown = ", ".join(
                    f"{name} of shape {shape} ({dtype})"
                    for name, (shape, dtype) in zip(self.tensors, described, strict=True)
                )
                raise ValueError(f"{type(self).__name__}: worker {worker} of P_x has {shown}; {why}")
        self._blocks = self.blocks(self.grid)
        if self.axis is not None:
            self._sizes = self._blocks[self.axis]
        self.check_extents()
        try:
            self._dtype = self._probe_dtype(first, self._device)
        except RuntimeError as error:
            raise RuntimeError(f"{type(self).__name__}: {error}") from error

    def _wrong_dtype(self, described: Sequence[Described]) -> str:
        tensors = zip(self.tensors, described, strict=True)
        if all(dtype.is_floating_point for name, (_, dtype) in tensors if name not in self.integer_arguments):
            return ""
        return "their dtypes must be of floating point"

    def why_not(self, *described: Described) -> str:
        """The reason why a worker's tensors do not match; "" if they do."""
        return "" if all(shape == described[0][0] for shape, _ in described) else "their shapes must be equal"

    def check_extents(self) -> None:
        """Raise an error if the whole tensors do not fit the weights."""

    # The computation

    def compute(self, *tensors: torch.Tensor) -> torch.Tensor:
        if not self.has_forward_mode and self.has_tangent:  # torch would raise on some ranks only
            raise NotImplementedError(f"{type(self).__name__}: torch has no forward-mode derivatives of this loss")
        if not self.grid.active:
            others = [zero_of(empty_result(x)).to(tensors[0].dtype) for x in tensors[1:] if x.requires_grad]
            numerator = sum(others, empty_result(tensors[0]))
            return numerator if self.reduction == "none" else self._reduced(numerator, 0.0)
        if self.reduction == "none" and not self._splits:
            return self.losses("none", *tensors)
        blocks = [wide(x) for x in tensors]
        if self.reduction == "none":
            return cast(
                torch.Tensor,
                reshape_empty(self.losses_over_workers(*blocks).to(self._dtype), self.result_dims(self.grid.dim)),
            )
        total = self.split_sum(*blocks) if self._splits else self.losses("sum", *blocks)
        return self._reduced(total, self.count(*blocks))

    def losses(self, reduction: str, *tensors: torch.Tensor) -> torch.Tensor:
        """The losses of this worker's blocks, or their sum, if no loss spans several workers."""
        # F.multi_margin_loss and F.multilabel_margin_loss return uninitialized memory as the sum of no losses.
        is_empty = reduction == "sum" and not tensors[0].numel()
        losses = type(self).function(*tensors, **self.arguments(tensors), reduction="none" if is_empty else reduction)
        return losses.sum() if is_empty else losses

    def split_sum(self, *tensors: torch.Tensor) -> torch.Tensor:
        """This worker's part of the sum of all losses, if losses span several workers."""
        return self.losses_over_workers(*tensors).sum()

    def losses_over_workers(self, *tensors: torch.Tensor) -> torch.Tensor:
        """The losses on the first of the workers that share them, and zero volume on the others."""
        raise NotImplementedError

    def count(self, *tensors: torch.Tensor) -> torch.Tensor | float:
        """This worker's part of the denominator of the mean: its number of losses."""
        if self.axis is None:
            return float(tensors[0].numel())
        if self.grid.place[self.axis]:
            return 0.0
        return float(math.prod(n for d, n in enumerate(tensors[0].shape) if d != self.axis))

    def _reduced(self, numerator: torch.Tensor, denominator: torch.Tensor | float) -> torch.Tensor:
        """The sum of the workers' numerators, divided by the sum of their denominators unless reduction is
        'sum', on every rank.

        Args:
            numerator, denominator: this worker's scalars; a numerator of zero volume on all other ranks.

        Collective over all ranks.
        """
        has_part, divides = self.grid.active, self.reduction != "sum"
        is_first = has_part and self.grid.rank == 0
        loss = _core.loss_of_parts(numerator, denominator, self._sum_of_all, self._dtype, divides, has_part, is_first)
        if is_first:
            return loss
        voted = self.agreement is not None and self.agreement.active  # then it knows whether workers have gradients
        if not voted and torch.is_grad_enabled() and not loss.requires_grad:
            loss.requires_grad_(True)  # so that backward() can be called here, as on workers
        return loss


@dataclass_transform(field_specifiers=(option,))
def loss(kind: LayerClass) -> LayerClass:
    """Make the constructor of a loss from its annotated attributes, and complete its documentation."""
    cls: type[Loss] = with_options(kind)
    cls.compute = _with_signature(cls.compute, cls.tensors)  # type: ignore[method-assign]
    cls.__doc__ = with_sections(cls, cls.shapes, cls.weights)
    return kind


def _with_signature(compute: Callable[..., torch.Tensor], names: Sequence[str]) -> Callable[..., torch.Tensor]:
    """Give a method these arguments, to be passed by name and named in messages."""

    @functools.wraps(compute)
    def named(self: Loss, *tensors: torch.Tensor) -> torch.Tensor:
        return compute(self, *tensors)

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    named.__signature__ = inspect.Signature([inspect.Parameter(name, kind) for name in ("self", *names)])  # type: ignore[attr-defined]
    return named


def _summary(weight: torch.Tensor | None) -> str | None:
    if weight is None or weight.is_meta:
        return None if weight is None else f"{list(weight.shape)} on the meta device"
    values = weight.detach().cpu().contiguous().reshape(-1)
    checksum = zlib.crc32(values.view(torch.uint8).numpy().tobytes()) if values.numel() else 0
    shown = values.tolist() if values.numel() <= 8 else f"checksum {checksum:#x}"
    return f"{list(weight.shape)} {weight.dtype} {shown}"
