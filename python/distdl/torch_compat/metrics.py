"""Counting of updates and groups of metrics in torchmetrics, which this module does not import."""

import torch


def count_update_without_elements(metric: torch.nn.Module) -> None:
    """Let a metric count an update with nothing."""
    metric._update_count += 1
    metric._computed = None  # the value of the updates until now


def forms_groups(module: torch.nn.Module) -> bool:
    """Whether a MetricCollection shares states between metrics that were equal after the first update."""
    return getattr(module, "_enable_compute_groups", False)
