"""Connectionist temporal classification (CTC) over blocks of the batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import torch
import torch.nn.functional as F

from distdl.nn.base.option_types import Flag, Integer, at_least
from distdl.nn.base.voted_layer import Described
from distdl.nn.loss.base import Loss, Reduction, loss

__all__ = ["DistributedCTCLoss"]


@loss
class DistributedCTCLoss(Loss):
    """The CTC loss of unaligned sequences: ``torch.nn.CTCLoss`` in blocks of the batch.

    Steps and classes are not split: each step goes over all classes and needs the step before it.
    """

    blank: Annotated[Integer, at_least(0, ValueError)] = 0
    reduction: Reduction = "mean"
    zero_infinity: Flag = False
    tensors = ("log_probs", "targets", "input_lengths", "target_lengths")
    function = staticmethod(F.ctc_loss)
    has_forward_mode = False
    integer_arguments = ("targets", "input_lengths", "target_lengths")
    shapes = (
        "Log-probabilities ``(T, N, C)`` over P_x ``[1, p, 1]``, or ``(T, C)`` over ``[1, 1]``. Targets ``(N, S)``, or "
        "concatenated, and lengths ``(N)``, as tensors or sequences, each for this worker's part of "
        "the batch. With reduction='none' the result is the block of the losses ``(N)``."
    )

    def check_grid(self) -> None:
        shape = list(self.grid.shape)
        self.check_shape(
            len(shape) in (2, 3) and shape[0] == shape[-1] == 1,
            "it must be [1, p, 1] or [1, 1], because steps and classes cannot be split: each step goes over all "
            "classes and needs the step before it",
        )

    def _probe_dtype(self, dtypes: Sequence[torch.dtype], device: torch.device | None = None) -> torch.dtype:
        zero = torch.zeros(1, dtype=torch.int64, device="cpu")
        log_probs = torch.zeros((1, 1, 1), dtype=dtypes[0], device=device)
        return F.ctc_loss(log_probs, zero.to(device).unsqueeze(0), zero + 1, zero, reduction="none").dtype

    def forward(self, *args: object, **kwargs: object) -> object:
        named = {**dict(zip(self.tensors, args, strict=False)), **kwargs}
        if len(args) + len(kwargs) == len(named) and set(named) == set(self.tensors):
            args = tuple(_lengths(named[name]) if "lengths" in name else named[name] for name in self.tensors)
            kwargs = {}
        return super().forward(*args, **kwargs)

    def why_not(self, *described: Described) -> str:
        shape, targets, *lengths = (shape for shape, _ in described)
        if len(shape) != self.grid.dim:
            return f"the log-probabilities must have the {self.grid.dim} dimensions of P_x"
        if any(dtype not in (torch.int32, torch.int64) for _, dtype in described[1:]):
            return "targets and lengths must be of dtype int32 or int64"
        batch = shape[1:-1]
        if any(extents not in (batch, batch or [1]) for extents in lengths) or len(targets) not in (1, 1 + len(batch)):
            return "there must be a target and two lengths for each element of the batch"
        return "there must be a target for each element of the batch" if targets[:-1] not in ([], batch) else ""

    def check_extents(self) -> None:
        classes = self.structure(self.grid)[0][0][-1]
        self.blocks(self.grid)  # raises if they do not match
        if self.blank >= classes:
            raise ValueError(f"DistributedCTCLoss: blank={self.blank}; there are {classes} classes")

    def problem_of(self, *tensors: torch.Tensor) -> str:
        """Describe errors that torch raises on this worker only, and class indices out of bounds."""
        log_probs, targets, steps, lengths = tensors
        if not steps.numel():
            return ""
        if steps.min() < 0 or steps.max() > log_probs.shape[0]:
            return f"has input lengths from {steps.min()} to {steps.max()}; there are {log_probs.shape[0]} steps"
        concatenated = targets.dim() == 1 and log_probs.dim() == 3
        room = targets.shape[-1]
        if lengths.min() < 0 or (int(lengths.sum()) != room if concatenated else lengths.max() > room):
            shape = list(targets.shape)
            return f"has target lengths from {lengths.min()} to {lengths.max()}, of targets of shape {shape}"
        if not concatenated:
            targets = targets[torch.arange(room, device=targets.device) < lengths.to(targets.device).unsqueeze(-1)]
        if targets.numel() and (targets.min() < 0 or targets.max() >= log_probs.shape[-1]):
            return f"has targets from {targets.min()} to {targets.max()}; there are {log_probs.shape[-1]} classes"
        return ""

    def result_dims(self, dims: int) -> int:
        return 1

    def losses(self, reduction: str, *tensors: torch.Tensor) -> torch.Tensor:
        log_probs, *_, lengths = tensors
        if log_probs.dim() == 3 and not log_probs.shape[1]:  # torch refuses an empty batch
            losses = log_probs.sum((0, 2))
        else:
            losses = super().losses("none", *tensors)
        if self.reduction == "mean":
            losses = losses / lengths.to(losses.device).clamp(min=1).reshape(losses.shape)
        return losses if reduction == "none" else losses.sum()

    def count(self, *tensors: torch.Tensor) -> torch.Tensor | float:
        return float(tensors[0].shape[1] if tensors[0].dim() == 3 else 1)


def _lengths(lengths: object) -> object:
    if isinstance(lengths, int) or (isinstance(lengths, list | tuple) and all(isinstance(n, int) for n in lengths)):
        return torch.tensor(lengths, dtype=torch.int64, device="cpu")
    return lengths
