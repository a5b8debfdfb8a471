"""Metrics of torchmetrics on blocks."""

from __future__ import annotations

import functools
import json
from typing import TypeVar

import torch

from distdl.partitions.comparison import agreed
from distdl.partitions.construction import constructing, constructor
from distdl.partitions.grid import Grid
from distdl.partitions.partition import Partition
from distdl.torch_compat.metrics import count_update_without_elements, forms_groups

MetricType = TypeVar("MetricType", bound=torch.nn.Module)


@constructor
def sync_metric(metric: MetricType, P: Partition) -> MetricType:
    """Let a metric of torchmetrics count the blocks of all ranks.

    ``metric(y_block, t_block)`` gives the value of the whole batch then, and ``metric.compute()`` that of all batches,
    on every rank, also where a block is empty. Right are metrics whose states are sums, extremes or lists over
    elements, such as MulticlassJaccardIndex, DiceScore with ``aggregation_level="global"``, MeanSquaredError,
    MeanMetric with weights, and AUROC. A metric that evaluates each sample as a whole (MeanIoU, a DiceScore of samples,
    SSIM) needs whole samples on each rank: first :func:`distdl.functional.repartition` the blocks to a partition that
    cuts only samples.

    Args:
        metric: a ``torchmetrics.Metric``, or a ``MetricCollection`` with ``compute_groups=False``; it is changed in
            place, and its copies have to be passed here again.
        P: the partition of the blocks.

    Returns:
        The metric.

    Raises:
        TypeError: on all ranks, if ``metric`` is not a metric of torchmetrics.
        ValueError: on all ranks, if a collection forms groups, which are those of a rank's own numbers.

    Collective over the communicator that P comes from, as are ``metric(...)`` and ``metric.compute()``;
    ``metric.update(...)`` is not.

    Source: https://lightning.ai/docs/torchmetrics/stable/pages/implement.html
    """
    with constructing("sync_metric", {"P": P}, {"metric": type(metric).__name__}) as (grid,):
        modules = list(metric.modules()) if isinstance(metric, torch.nn.Module) else []
        parts = [part for part in modules if hasattr(part, "dist_sync_fn")]
        if not parts:
            raise TypeError(f"sync_metric: metric is a {type(metric).__name__}; it has to be a metric of torchmetrics")
        if any(map(forms_groups, modules)):
            raise ValueError("sync_metric: make the MetricCollection with compute_groups=False")
    for part in parts:
        name = f"compute() of {type(part).__name__}"
        part.dist_sync_fn = functools.partial(_gather_state, name, grid.constructing_ranks())
        part.distributed_available_fn = lambda: True
        part.dist_sync_on_step = True
        if not any(child in parts for child in part.children()):
            _pass_over_empty_blocks(part)
    return metric


def _gather_state(name: str, all_ranks: Grid, state: torch.Tensor, group: object = None) -> list[torch.Tensor]:
    """The states of all ranks, in their order. Collective over the ranks.

    Args:
        name: the call, for messages.
    """
    states = gather_tensors(name, all_ranks, state)
    states[all_ranks.rank] = state  # whose gradient torchmetrics keeps
    dtypes = [part.dtype for part in states if part.numel()] or [state.dtype]
    # A rank that has counted nothing does not know the dtype of a list.
    return [part if part.numel() else part.to(dtypes[0]) for part in states]


def gather_tensors(name: str, all_ranks: Grid, tensor: torch.Tensor) -> list[torch.Tensor]:
    """Small tensors of all ranks, of any shapes, in their order and without derivatives. Collective over the ranks.

    Args:
        name: the operation, for messages.
    """
    with agreed(name, all_ranks, lambda: ""):  # so that ranks in other calls do not exchange their messages
        values = tensor.detach().cpu().contiguous()
        header = json.dumps([str(values.dtype).removeprefix("torch."), list(values.shape)]).encode()
        data = values.reshape(-1).view(torch.uint8).numpy().tobytes()
    headers, texts = all_ranks.gather(header), all_ranks.gather(data)
    tensors = []
    for (dtype_name, shape), text in zip(map(json.loads, headers), texts, strict=True):
        dtype = getattr(torch, dtype_name)
        part = torch.frombuffer(bytearray(text), dtype=dtype) if text else torch.empty(0, dtype=dtype, device="cpu")
        tensors.append(part.reshape(shape).to(tensor.device))
    return tensors


def _pass_over_empty_blocks(metric: torch.nn.Module) -> None:
    """Let a metric count an update without elements, whose shapes it might refuse, as an update with nothing."""
    update = metric.update

    @functools.wraps(update)
    def update_with_elements(*args: object, **kwargs: object) -> None:
        first = next((value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)), None)
        if first is None or first.numel():
            update(*args, **kwargs)
        else:
            count_update_without_elements(metric)

    metric.update = update_with_elements
