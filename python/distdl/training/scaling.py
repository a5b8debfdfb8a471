"""The scale of the loss in mixed precision, the same on all ranks of a model."""

from __future__ import annotations

import torch

from distdl.modules.layout_lookup import layouts_of_parameters
from distdl.modules.layouts import ranks_of
from distdl.partitions.comparison import agreed


class GradScaler(torch.amp.GradScaler):
    """``torch.amp.GradScaler`` for models in blocks: all ranks skip a step or take it, and have the same scale.

    With torch's class, only the rank on which a gradient overflows would skip the step and change its scale.

    Args:
        device, init_scale, growth_factor, backoff_factor, growth_interval, enabled: as in torch. Pass ``"cpu"`` for
            models on CPUs.

    ``unscale_``, and ``step`` where it unscales, are collective over the communicator that the partitions of the
    optimizer's parameters come from; other methods take no communication. An error of any rank is raised on all.

    Source: https://docs.pytorch.org/docs/stable/amp.html#gradient-scaling.
    """

    # torch's sharded training overrides the same method (torch.distributed.fsdp.sharded_grad_scaler).
    def _unscale_grads_(
        self, optimizer: torch.optim.Optimizer, inv_scale: torch.Tensor, found_inf: torch.Tensor, allow_fp16: bool
    ) -> dict[torch.device, torch.Tensor]:
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        all_ranks = ranks_of(layout for layout in layouts_of_parameters(parameters) if layout is not None)
        overflows: dict[torch.device, torch.Tensor] = {}
        with agreed("GradScaler.unscale_", all_ranks, lambda: ""):
            overflows = super()._unscale_grads_(optimizer, inv_scale, found_inf, allow_fp16)
        here = any(map(bool, overflows.values()))
        anywhere = any(map(bool, map(int, all_ranks.gather(b"%d" % here)))) if all_ranks.known else here
        # torch's class raises without entries, also on a rank without gradients.
        devices = overflows or [found_inf.device]
        return {device: torch.full_like(found_inf, float(anywhere), device=device) for device in devices}
