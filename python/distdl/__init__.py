"""Model-parallel deep learning for PyTorch: distributed layers from linear operators and their adjoints.

Start programs with ``mpiexec -n P python -m mpi4py program.py``, so that an uncaught exception ends all ranks.
"""

from distdl.process import load as _load  # noqa: F401  isort: skip  (first: it loads the extension, or says why not)
from distdl import _core, data, fft, functional, memory, nn, progress, watchdog
from distdl.checkpoint import load, save
from distdl.diagnostics.check import Finding, check
from distdl.models import DistributedModel, Machine, distribute, gather, plans, report, scatter
from distdl.modules.sequential_state import (
    load_sequential,
    parameter_count,
    sequential_gradients,
    sequential_state_dict,
)
from distdl.parameters import parameter_layout
from distdl.partitions.arranging import arrange
from distdl.partitions.comparison import HabitWarning
from distdl.partitions.partition import Partition
from distdl.partitions.structure import TensorStructure, structure_check, zero_volume_tensor
from distdl.process import ending, environment, interrupts, legacy_paths
from distdl.process.devices import local_device
from distdl.progress_bars import set_progress_bars
from distdl.replicas import DataParallel
from distdl.statistics import CommStats, comm_stats, reset_comm_stats
from distdl.training import optimizers
from distdl.training.averaging import update_bn
from distdl.training.clipping import clip_grad_norm_
from distdl.training.metrics import sync_metric
from distdl.training.scaling import GradScaler
from distdl.training.stopping import request_stop, stop_requested
from distdl.watchdog import set_watchdog

MPIError = _core.MPIError
MPIPartition = Partition

__version__ = "0.1.0"

__all__ = [
    "CommStats",
    "DataParallel",
    "DistributedModel",
    "Finding",
    "GradScaler",
    "HabitWarning",
    "MPIError",
    "MPIPartition",
    "Machine",
    "Partition",
    "TensorStructure",
    "arrange",
    "check",
    "clip_grad_norm_",
    "comm_stats",
    "data",
    "distribute",
    "fft",
    "functional",
    "gather",
    "load",
    "load_sequential",
    "local_device",
    "memory",
    "nn",
    "parameter_count",
    "parameter_layout",
    "plans",
    "progress",
    "report",
    "request_stop",
    "reset_comm_stats",
    "save",
    "scatter",
    "sequential_gradients",
    "sequential_state_dict",
    "set_progress_bars",
    "set_watchdog",
    "stop_requested",
    "structure_check",
    "sync_metric",
    "update_bn",
    "watchdog",
    "zero_volume_tensor",
]

environment.apply()
legacy_paths.install_finder()  # for programs written for DistDL: distdl/classic
ending.install_at_end()
interrupts.install_handlers()
optimizers.install_checks()
