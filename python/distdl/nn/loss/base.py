"""The common part of all losses: the workers' parts become one number on every rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch

from distdl import operators
from distdl.collective.grid import Grid
from distdl.nn.layer import Described, Layer
from distdl.nn.options import check_choice
from distdl.nn.precision import loss_dtype


class Loss(Layer):
    """A loss that is a quotient of two sums over all workers.

    The workers' sums meet on worker 0, whose loss carries the gradient. All other ranks receive its value, and take
    part in its backward pass: all ranks call ``backward()``, and the loss counts once.
    """

    tensors: ClassVar[tuple[str, ...]] = ("input", "target")
    reduction: str

    def check_options(self) -> None:
        check_choice(type(self).__name__, "reduction", self.reduction, ("mean", "sum", "none"))

    def prepare(self) -> None:
        workers, first = self.grid.line(self.grid.ranks), self.grid.line(self.grid.ranks[:1])
        self._to_first = operators.sum_reduce(workers, first)
        self._to_everyone = operators.broadcast(first, self.grid.constructing_ranks())

    def agreeing(self) -> list[Grid]:
        """All ranks that hold the loss: each of them receives the number."""
        return [self.grid.constructing_ranks()]

    def looked_at(self, inputs: Sequence[object]) -> Sequence[object]:
        """Make all ranks set up again if this worker's target seems wrong; the set-up then raises on all of them."""
        if self._distdl_is_setup and self._problem_here(inputs) and self._distdl_agreement is not None:
            self._distdl_agreement.forget()
        return inputs

    def _problem_here(self, inputs: Sequence[object]) -> str:
        if not self.grid.active or len(inputs) < 2:
            return ""
        try:
            return self.problem_of(inputs[1])
        except (RuntimeError, TypeError) as error:  # a tensor whose values cannot be compared, such as a sparse tensor
            return f"has values that cannot be compared: {error}"

    def _distdl_module_setup(self, input: tuple[object, ...]) -> None:
        super()._distdl_module_setup(input)
        everyone = self.grid.constructing_ranks()
        for rank, problem in zip(everyone.ranks, everyone.gather(self._problem_here(input).encode()), strict=True):
            if problem:
                raise ValueError(f"{type(self).__name__}: the target of rank {rank} {problem.decode()}")

    def set_up(self) -> None:
        """Check on all ranks that every worker's target belongs to its input."""
        inputs, targets = self.structure(self.grid), self.structure(self.grid, tensor=1)
        self.check_input(inputs)
        for worker, (one, target) in enumerate(zip(inputs, targets, strict=True)):
            if (one[1], target[1]) != (inputs[0][1], targets[0][1]):
                why = f"worker 0 has {inputs[0][1]} and {targets[0][1]}: all workers must have the same dtypes"
            else:
                why = self.why_not(one, target)
            if why:
                raise ValueError(
                    f"{type(self).__name__}: worker {worker} of P_x has an input of shape {one[0]} ({one[1]}) "
                    f"and a target of shape {target[0]} ({target[1]}); {why}"
                )

    def problem_of(self, target: object) -> str:
        """The error in the values of this worker's target, or ""."""
        return ""

    def check_input(self, inputs: Sequence[Described]) -> None:
        """Raise an error if the workers' inputs, described in worker order, do not fit together."""

    def why_not(self, input: Described, target: Described) -> str:
        """The reason why a worker's target does not belong to its input; "" if it does."""
        raise NotImplementedError

    def reduce(self, numerator: torch.Tensor, denominator: torch.Tensor | float, dtype: torch.dtype) -> torch.Tensor:
        """The sum of the workers' numerators, with 'mean' divided by the sum of their denominators, on every rank.

        Args:
            numerator, denominator: this worker's scalars; a zero-volume numerator on all other ranks.
            dtype: the dtype of the input, which determines that of the loss.

        Collective over all ranks that hold the loss.
        """
        if self.grid.active:
            mine = torch.stack(
                [numerator, torch.as_tensor(denominator, dtype=numerator.dtype, device=numerator.device)]
            )
        else:
            mine = numerator  # zero volume
        sums = self._to_first(mine)
        if self.grid.active and self.grid.rank == 0:
            # The denominator does not depend on the input; detached, it does not appear in second derivatives either.
            loss = (sums[0] / sums[1].detach() if self.reduction == "mean" else sums[0]).to(
                loss_dtype(dtype, sums.device)
            )
            self._to_everyone(loss.detach())
            return loss
        value = self._to_everyone(sums.detach()).sum()
        loss = value + sums.sum().to(value.dtype)  # a sum of no elements connects this rank with the backward pass
        if not self.grid.active and torch.is_grad_enabled() and not loss.requires_grad:
            loss.requires_grad_(True)  # so that backward() can be called here, as on the workers
        return loss
