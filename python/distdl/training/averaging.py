"""Running statistics of batch norms for averaged weights."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from distdl.nn.norm import DistributedBatchNorm
from distdl.torch_compat.layers import AnyBatchNorm


@torch.no_grad()
def update_bn(loader: Iterable[object], model: torch.nn.Module, device: torch.device | str | int | None = None) -> None:
    """Compute the running statistics of all batch norms of a model anew, as ``torch.optim.swa_utils.update_bn``.

    It includes the batch norms of :mod:`distdl.nn`, which torch's function passes over.

    Args:
        loader: batches in blocks, or tuples and lists that begin with them; the same number on all ranks.
        model: the model, such as a ``torch.optim.swa_utils.AveragedModel``. Its mode is restored.
        device: the device to which each block is moved first.

    Every rank of the model has to call it.

    Source: https://docs.pytorch.org/docs/stable/optim.html#taking-care-of-batch-normalization.
    """
    kinds = (AnyBatchNorm, DistributedBatchNorm)
    momenta = {module: module.momentum for module in model.modules() if isinstance(module, kinds)}
    if not momenta:
        return
    was_training = model.training
    model.train()
    for module in momenta:
        module.reset_running_stats()
        module.momentum = None  # which averages over all batches
    for batch in loader:
        block = batch[0] if isinstance(batch, list | tuple) else batch
        model(block if device is None else block.to(device))  # type: ignore[union-attr]
    for module, momentum in momenta.items():
        module.momentum = momentum
    model.train(was_training)
