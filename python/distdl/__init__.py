"""Model-parallel deep learning for PyTorch: distributed layers from linear operators and their adjoints.

Start programs with ``mpiexec -n P python -m mpi4py program.py``, so that an uncaught exception ends all ranks.
"""

from distdl.process import load as _load  # noqa: F401  isort: skip  (first: it loads the extension, or says why not)
from distdl import _core, compatibility, functional, memory, nn, progress, watchdog
from distdl.parameters import parameter_layout
from distdl.partition import Partition
from distdl.process import ending, environment
from distdl.state import load_sequential, sequential_state_dict
from distdl.statistics import CommStats, comm_stats, reset_comm_stats
from distdl.structure import TensorStructure, structure_check, zero_volume_tensor
from distdl.watchdog import set_watchdog

MPIError = _core.MPIError
MPIPartition = Partition

__version__ = "0.1.0"

__all__ = [
    "CommStats",
    "MPIError",
    "MPIPartition",
    "Partition",
    "TensorStructure",
    "comm_stats",
    "functional",
    "load_sequential",
    "memory",
    "nn",
    "parameter_layout",
    "progress",
    "reset_comm_stats",
    "sequential_state_dict",
    "set_watchdog",
    "structure_check",
    "watchdog",
    "zero_volume_tensor",
]

environment.apply()
compatibility.install()
ending.install()
