"""Model-parallel deep learning for PyTorch: distributed layers from linear operators and their adjoints.

Start programs with ``mpiexec -n P python -m mpi4py program.py``, so that an uncaught exception ends all ranks.
"""

from distdl._load import _core  # isort: skip  (first: it explains what is wrong with an installation)
from distdl import compatibility, functional, memory, nn, progress
from distdl.partition import Partition
from distdl.state import load_sequential, sequential_state_dict
from distdl.structure import TensorStructure, structure_check, zero_volume_tensor

MPIError = _core.MPIError
MPIPartition = Partition

__version__ = "0.1.0"

__all__ = [
    "MPIError",
    "MPIPartition",
    "Partition",
    "TensorStructure",
    "functional",
    "load_sequential",
    "memory",
    "nn",
    "progress",
    "sequential_state_dict",
    "structure_check",
    "zero_volume_tensor",
]

compatibility.install()
