"""The scale of the loss in mixed precision, on which ranks that hold blocks of one model agree."""

from __future__ import annotations

import torch

from distdl.collective.comparison import agreed
from distdl.nn.declared import ranks_of
from distdl.nn.owners import layouts_of_parameters


class GradScaler(torch.amp.GradScaler):
    """``torch.amp.GradScaler`` for models in blocks: all ranks skip a step or take it, and have the same scale.

    Where the gradient of one block overflows, the other ranks know nothing of it. With torch's own class they would
    take the step, and scale the next loss by another factor.

    Args:
        device, init_scale, growth_factor, backoff_factor, growth_interval, enabled: as in torch. Pass ``"cpu"`` where
            the model is on CPUs.

    ``unscale_``, and ``step`` where it unscales, are collective over the communicator that the partitions of the
    optimizer's parameters come from; all other methods take no communication. What one rank
    raises, all of them raise.

    Source: https://docs.pytorch.org/docs/stable/amp.html#gradient-scaling.
    """

    # torch's sharded training overrides the same method (torch.distributed.fsdp.sharded_grad_scaler).
    def _unscale_grads_(
        self, optimizer: torch.optim.Optimizer, inv_scale: torch.Tensor, found_inf: torch.Tensor, allow_fp16: bool
    ) -> dict[torch.device, torch.Tensor]:
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        everyone = ranks_of(layout for layout in layouts_of_parameters(parameters) if layout is not None)
        found: dict[torch.device, torch.Tensor] = {}
        with agreed("GradScaler.unscale_", everyone, lambda: ""):
            found = super()._unscale_grads_(optimizer, inv_scale, found_inf, allow_fp16)
        mine = any(bool(one) for one in found.values())
        anywhere = any(map(bool, map(int, everyone.gather(b"%d" % mine)))) if everyone.known else mine
        # An entry also where this rank has no gradients: torch's class takes none for a mistake.
        return {one: torch.full_like(found_inf, float(anywhere), device=one) for one in found or [found_inf.device]}
