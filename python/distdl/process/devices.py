"""The device that each rank computes on."""

from __future__ import annotations

import os

import torch
from mpi4py import MPI

# Of Hydra (MPICH, Intel MPI), Open MPI, Cray PALS, MVAPICH, Flux, and of Slurm, which also sets its own around others.
_LOCAL_RANKS = ("MPI_LOCALRANKID", "OMPI_COMM_WORLD_LOCAL_RANK", "PALS_LOCAL_RANKID", "MV2_COMM_WORLD_LOCAL_RANK",
                "FLUX_TASK_LOCAL_ID", "SLURM_LOCALID")  # fmt: skip


def local_device() -> torch.device:
    """The device of this rank, which becomes the current one: the ranks of a machine take its devices in turn.

    A device that a variable such as ``CUDA_VISIBLE_DEVICES`` hides from a rank does not count. Without any accelerator
    (:func:`torch.accelerator.current_accelerator`) it is the CPU.

    Every rank has to call it: where the launcher tells a rank no number on its machine, MPI tells it.

    Example:
        >>> device = distdl.local_device()
        >>> model = distdl.distribute(make_model().to(device), P_x)
    """
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is None:
        return torch.device("cpu")
    device = torch.device(accelerator.type, _local_rank() % torch.accelerator.device_count())
    torch.accelerator.set_device_index(device)
    return device


def _local_rank() -> int:
    """The number of this rank among those of its machine."""
    for name in _LOCAL_RANKS:
        if os.environ.get(name, "").isdecimal():
            return int(os.environ[name])
    on_this_machine = MPI.COMM_WORLD.Split_type(MPI.COMM_TYPE_SHARED)
    rank = on_this_machine.Get_rank()
    on_this_machine.Free()
    return rank
