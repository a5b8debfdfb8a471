"""Call a function with random numbers, to find the dimensions along which it computes each index by itself."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import torch

from distdl.models.capture import unrecorded
from distdl.models.capture.recording import CommonDim, Node, Value
from distdl.models.operations.operation import NoRuleError, RandomError
from distdl.torch_compat.trees import tree_leaves

_Tensors = list[torch.Tensor]
_MOST_TRIED = 2**26  # of the tensors of a call


class Trials:
    """Calls of a node's function with random numbers.

    Args:
        tables: the values of inputs that are known; None for others.
        device: on which the calls run.

    Raises:
        NoRuleError: if there is no telling how the function may be split.
    """

    def __init__(self, node: Node, tables: Sequence[torch.Tensor | None], device: torch.device) -> None:
        self._node, self._call = node, node.as_function()
        self._generator, self._device = torch.Generator().manual_seed(1), device
        self._is_float = [value.dtype.is_floating_point or value.dtype.is_complex for value in node.inputs]
        pairs = zip(self._is_float, tables, strict=True)
        self._knows_indices = all(is_float or table is not None for is_float, table in pairs)
        if node.written:
            raise NoRuleError("no rule, and it writes into its arguments")
        if sum(math.prod(value.shape) for value in (*node.inputs, *node.outputs)) > _MOST_TRIED:
            raise NoRuleError("no rule, and tensors too large to try how it can be split")
        try:
            self._choose_inputs(tables)
        except NoRuleError:
            raise
        except Exception as error:
            raise NoRuleError(f"no rule, and of random numbers it raises {type(error).__name__}: {error}") from error

    def _choose_inputs(self, tables: Sequence[torch.Tensor | None]) -> None:
        """Choose inputs with finite results, which a second call repeats."""
        generators = torch.get_rng_state(), unrecorded.drawn_outside_of_torch()
        for sign in (-1, 1):
            self._sign = sign
            pairs = zip(self._node.inputs, tables, strict=True)
            self._inputs = [self._drawn(value) if table is None else self._near(table) for value, table in pairs]
            self._results = self._run(self._inputs)
            if all(bool(result.isfinite().all()) for result in self._results):
                break
        else:
            raise NoRuleError("no rule, and no finite results of random numbers")
        if [(result.shape, result.dtype) for result in self._results] != [
            (value.shape, value.dtype) for value in self._node.outputs
        ]:
            raise NoRuleError("no rule, and results of other shapes or dtypes than without values")
        is_repeated = all(map(_alike, self._run(self._inputs), self._results))
        after = torch.get_rng_state(), unrecorded.drawn_outside_of_torch()
        if not is_repeated or not torch.equal(generators[0], after[0]) or generators[1] != after[1]:
            raise RandomError("no rule, and it draws random numbers")

    # Tensors

    def _numbers(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        wide = torch.complex128 if dtype.is_complex else torch.float64
        numbers = torch.randn(tuple(shape), dtype=wide, generator=self._generator, device="cpu")
        return numbers.to(self._device, dtype)

    def _drawn(self, value: Value) -> torch.Tensor:
        """Random numbers for a tensor, of both signs or positive; zeros as indices."""
        if not (value.dtype.is_floating_point or value.dtype.is_complex):
            return torch.zeros(value.shape, dtype=value.dtype, device=self._device)
        numbers = self._numbers(value.shape, value.dtype)
        return numbers if value.dtype.is_complex or self._sign < 0 else numbers.abs()

    def _near(self, table: torch.Tensor) -> torch.Tensor:
        """Numbers near those of a table, which may be all the same; indices as they are."""
        if not table.dtype.is_floating_point:
            return table
        return table * (1 + 0.1 * self._numbers(table.shape, table.dtype).abs())

    def _run(self, inputs: Sequence[torch.Tensor]) -> _Tensors:
        with torch.no_grad():
            return self._flat(self._call(*inputs))

    @staticmethod
    def _flat(results: object) -> _Tensors:
        return [leaf for leaf in tree_leaves(results) if isinstance(leaf, torch.Tensor)]

    # Dimensions

    def common_dims(self) -> Iterator[CommonDim]:
        """The dimensions of the results that may be split, with those of the inputs."""
        outputs = self._node.outputs
        if not self._knows_indices or any(len(value.shape) != len(outputs[0].shape) for value in outputs):
            return
        for output, n in enumerate(outputs[0].shape):
            if n < 2 or any(value.shape[output] != n for value in outputs):
                continue
            dim = CommonDim(output, tuple(self._dim_of(i, output) for i in range(len(self._inputs))))
            if self._is_equivariant(dim) and self._has_parts(dim):
                yield dim
                self._inputs = self._part(dim, 0, 2)  # is enough from here on
                self._results = self._run(self._inputs)

    def _dim_of(self, i: int, output: int) -> int | None:
        """The dimension of an input of which an index changes this index of the results, and no other; or None."""
        if not self._is_float[i]:
            return None
        n = self._results[0].shape[output]
        own = [d for d, size in enumerate(self._inputs[i].shape) if size == n]
        return next((d for d in sorted(own, key=lambda d: d != output) if self._is_local(i, d, output)), None)

    def _is_local(self, i: int, d: int, output: int) -> bool:
        """Whether another index of an input changes the results at this index, and nowhere else."""
        at = self._results[0].shape[output] // 2
        before, own, after = self._inputs[i].tensor_split((at, at + 1), d)
        changed = torch.cat((before, own * self._sign * (2 + 0.1 * self._numbers(own.shape, own.dtype)), after), d)
        results = self._run([*self._inputs[:i], changed, *self._inputs[i + 1 :]])
        for x, y in zip(self._results, results, strict=True):
            (*others, own), (*others_after, own_after) = (
                [*result.tensor_split((at, at + 1), output)[::2], result.narrow(output, at, 1)] for result in (x, y)
            )
            is_changed = not x.dtype.is_floating_point or not _alike(own, own_after)
            if not is_changed or not all(map(_alike, others, others_after)):
                return False
        return True

    def _is_equivariant(self, dim: CommonDim) -> bool:
        """Whether a shift of the inputs shifts the results."""
        results = self._run(self._changed(dim, lambda x, d: x.roll(1, d)))
        pairs = zip(self._results, results, strict=True)
        return all(_alike(x.roll(1, dim.output), y) and not _alike(x, y) for x, y in pairs)

    def _has_parts(self, dim: CommonDim) -> bool:
        """Whether parts of the inputs give parts of the results, and of the gradients."""
        n = self._results[0].shape[dim.output]
        intervals = ((0, 1), (1, n))
        weights = [self._numbers(x.shape, x.dtype) for x in self._results]
        try:
            gradients = self._gradients(self._inputs, weights)
        except Exception:  # of a function without a derivative, also in one process
            gradients = []
        try:
            parts = [self._part(dim, *interval) for interval in intervals]
            results = zip(*map(self._run, parts), strict=True)
            of_parts = [
                self._gradients(part, [x.narrow(dim.output, start, stop - start) for x in weights]) if gradients else []
                for part, (start, stop) in zip(parts, intervals, strict=True)
            ]
        except Exception:  # of a function that takes no parts
            return False
        dims = [d for d, asks in zip(dim.inputs, self._asks(), strict=True) if asks and gradients]
        sums = (x + y if d is None else torch.cat((x, y), d) for d, x, y in zip(dims, *of_parts, strict=True))
        joined = (torch.cat(own, dim.output) for own in results)
        return all(map(_alike, self._results, joined)) and all(map(_alike, gradients, sums))

    def _changed(self, dim: CommonDim, change: Callable[[torch.Tensor, int], torch.Tensor]) -> _Tensors:
        pairs = zip(self._inputs, dim.inputs, strict=True)
        return [x if d is None else change(x, d) for x, d in pairs]

    def _part(self, dim: CommonDim, start: int, stop: int) -> _Tensors:
        return self._changed(dim, lambda x, d: x.narrow(d, start, stop - start).contiguous())

    def _asks(self) -> list[bool]:
        node = self._node
        return [
            value.is_differentiable and value not in node.underived and node.records_gradients for value in node.inputs
        ]

    def _gradients(self, inputs: _Tensors, weights: _Tensors) -> _Tensors:
        """The gradients of the results' sum with weights by inputs."""
        tensors = [x.detach().requires_grad_(asks) for x, asks in zip(inputs, self._asks(), strict=True)]
        leaves = [x for x in tensors if x.requires_grad]
        pairs = [pair for pair in zip(self._flat(self._call(*tensors)), weights, strict=True) if pair[0].requires_grad]
        if not leaves or not pairs:
            return [torch.zeros_like(x) for x in leaves]
        results, outer = zip(*pairs, strict=True)
        gradients = torch.autograd.grad(results, leaves, outer, allow_unused=True)
        return [torch.zeros_like(x) if own is None else own for x, own in zip(leaves, gradients, strict=True)]


def _alike(x: torch.Tensor, y: torch.Tensor) -> bool:
    """Whether tensors are equal up to rounding."""
    if not (x.dtype.is_floating_point or x.dtype.is_complex):
        return torch.equal(x, y)
    if x.shape != y.shape:
        return False
    if not x.numel():
        return True
    epsilon = torch.finfo(x.dtype).eps
    wide = torch.complex128 if x.dtype.is_complex else torch.float64
    x, y = x.to(wide), y.to(wide)
    return bool((x - y).abs().max() <= x.abs().max() * epsilon * (64 if epsilon < 1e-5 else 2))
