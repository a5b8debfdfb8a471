"""A strategy for Lightning: the networks of a LightningModule over partitions.

``import distdl.lightning`` needs the package ``lightning``, which distdl does not depend on.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

import lightning.pytorch as pl
import torch
from lightning.pytorch.plugins.precision import Precision
from lightning.pytorch.strategies import SingleDeviceStrategy
from lightning.pytorch.utilities.rank_zero import rank_zero_only

from distdl.checkpoint import load, save
from distdl.models.distributing import distribute
from distdl.modules.module import Module
from distdl.partitions.comparison import gather_or_raise
from distdl.partitions.partition import Partition
from distdl.training.clipping import clip_grad_norm_
from distdl.training.metrics import gather_tensors

_T = TypeVar("_T")
_WRITTEN_BY_SAVE = ("state_dict", "optimizer_states")  # what distdl.save() writes of a checkpoint of Lightning


class Strategy(SingleDeviceStrategy):
    """Trains the networks of a LightningModule over partitions, with the numbers of one process.

    When a trainer sets up, each network in an attribute of the LightningModule is replaced by
    ``distdl.distribute(network, P_x, ...)``. Optimizers, schedules, loggers, callbacks and clipping work as in one
    process; loggers write on rank 0. Checkpoints are files of :func:`distdl.save`: another number of ranks, or one
    process with this strategy on a partition of one rank, can go on with them, and safetensors reads their weights.

    Args:
        P_x: the partition of the networks' inputs.
        networks: the names of the attributes, with a dict of further arguments of :func:`distdl.distribute` for each,
            such as ``{"net": {"plan": plan}, "loss": {"input_partitions": {"labels": P_labels}}}``. By default all
            children that have parameters, unless they hold layers over partitions already.

    The loaders give this rank's blocks, as :func:`distdl.data.loader` does. Run with ``devices=1``, which is one device
    for each rank. Each rank logs the same values if they are results without dimensions. Several optimizers cannot be
    saved.

    Example:
        >>> trainer = lightning.Trainer(strategy=distdl.lightning.Strategy(P_x), devices=1, max_epochs=10)
        >>> trainer.fit(module, distdl.data.loader(dataset, (P_x, P_x), batch_size=4))

    Collective over the communicator that P_x comes from, as are the methods of the trainer.

    Source: https://lightning.ai/docs/pytorch/stable/extensions/strategy.html
    """

    strategy_name = "distdl"

    def __init__(self, P_x: Partition, networks: Mapping[str, Mapping[str, object]] | None = None) -> None:
        if not isinstance(P_x, Partition):
            raise TypeError(f"Strategy: P_x is a {type(P_x).__name__}; it has to be a distdl.Partition")
        super().__init__(device=P_x.device)
        self._P_x, self._networks = P_x, networks
        self._ranks = P_x.grid.constructing_ranks()
        self.global_rank, self.world_size = self._ranks.rank, self._ranks.size
        rank_zero_only.rank = self.global_rank

    # Networks

    def model_to_device(self) -> None:
        """Replace the networks by networks over partitions."""
        module = self.lightning_module
        distributed: Callable[..., torch.nn.Module] = distribute
        for name, options in self._chosen(module).items():
            network = module.get_submodule(name)
            if not any(isinstance(part, Module) for part in network.modules()):
                owner, _, leaf = name.rpartition(".")
                setattr(module.get_submodule(owner), leaf, distributed(network, self._P_x, **options))
        super().model_to_device()

    def _chosen(self, module: pl.LightningModule) -> Mapping[str, Mapping[str, object]]:
        if self._networks is not None:
            return self._networks
        return {name: {} for name, child in module.named_children() if any(True for _ in child.parameters())}

    def setup_precision_plugin(self) -> None:
        """Let the trainer clip by the norm of all blocks."""
        super().setup_precision_plugin()
        plugin: Precision = self.precision_plugin

        def clip_grad_by_norm(optimizer: torch.optim.Optimizer, clip_val: float) -> None:
            clip_grad_norm_(plugin.main_params(optimizer), clip_val)

        plugin.clip_grad_by_norm = clip_grad_by_norm

    # Checkpoints

    @property
    def restore_checkpoint_after_setup(self) -> bool:
        """Whether a file is loaded when the networks are over partitions."""
        return True

    def lightning_module_state_dict(self) -> dict[str, object]:
        """No tensors, which :func:`distdl.save` takes from the module itself."""
        return {}

    def optimizer_state(self, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
        """No tensors, which :func:`distdl.save` takes from the optimizer itself."""
        return {}

    def save_checkpoint(
        self, checkpoint: dict[str, object], filepath: str | Path, storage_options: object = None
    ) -> None:
        """Write a file with all ranks."""
        if storage_options is not None:
            raise TypeError("Strategy: storage_options are for plugins of Lightning, which write no blocks")
        rest = {name: value for name, value in checkpoint.items() if name not in _WRITTEN_BY_SAVE}
        if self.is_global_zero:
            Path(filepath).absolute().parent.mkdir(parents=True, exist_ok=True)
        self.barrier()
        save(filepath, self.lightning_module, self._optimizer(), lightning=rest)

    def load_checkpoint(self, checkpoint_path: str | Path, weights_only: bool | None = None) -> dict[str, object]:
        """Load a file into the module and its optimizer; what else it holds is returned."""
        module = self.lightning_module
        values = load(checkpoint_path, module, self._optimizer(), strict=module.strict_loading)
        rest = values.get("lightning", {})
        assert isinstance(rest, dict)
        return {**{key: {} for key in _WRITTEN_BY_SAVE}, **rest}

    def load_model_state_dict(self, checkpoint: Mapping[str, object], strict: bool = True) -> None:
        """Nothing: the weights are loaded by then."""

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, object]) -> None:
        """Nothing: the states are loaded by then."""

    def _optimizer(self) -> torch.optim.Optimizer | None:
        if len(self.optimizers) > 1:
            raise NotImplementedError(
                f"Strategy: the module has {len(self.optimizers)} optimizers; a checkpoint holds one. Give all "
                "parameters to one optimizer, in groups"
            )
        return self.optimizers[0] if self.optimizers else None

    # Ranks

    @property
    def is_global_zero(self) -> bool:
        """Whether this is rank 0, which writes logs and shows progress."""
        return self.global_rank == 0

    def barrier(self, name: str | None = None) -> None:
        """Wait until all ranks are here."""
        self._gather("barrier", b"")

    def broadcast(self, obj: _T, src: int = 0) -> _T:
        """The object of one rank, on every rank."""
        received: _T = pickle.loads(
            self._gather("broadcast", pickle.dumps(obj) if self.global_rank == src else b"")[src]
        )
        return received

    def all_gather(self, tensor: torch.Tensor, group: object = None, sync_grads: bool = False) -> torch.Tensor:
        """The tensors of all ranks in a new first dimension, without derivatives."""
        return torch.stack(gather_tensors("Strategy.all_gather", self._ranks, tensor))

    def reduce(self, tensor: object, group: object = None, reduce_op: object = "mean") -> object:
        """The mean or sum of a number that each rank logs."""
        if not isinstance(tensor, torch.Tensor):
            return tensor
        total = torch.stack(gather_tensors("Strategy.reduce", self._ranks, tensor)).sum(0)
        is_mean = str(reduce_op).lower() in ("none", "mean", "avg", "redoptype.avg")
        return total / self.world_size if is_mean else total

    def reduce_boolean_decision(self, decision: bool, all: bool = True) -> bool:
        """Whether all ranks, or any of them, decide so."""
        decisions = [text == b"1" for text in self._gather("reduce_boolean_decision", b"1" if decision else b"0")]
        combine: Callable[[list[bool]], bool] = min if all else max
        return combine(decisions)

    def _gather(self, method: str, data: bytes) -> list[bytes]:
        return gather_or_raise(f"Strategy.{method}", self._ranks, lambda: data)
