"""The table of misuses: what a training run needs around its layers."""

import atexit
import functools
import shutil
import tempfile
from pathlib import Path

import torch
from mpi4py import MPI

import distdl
import distdl.nn as dnn
from support.misuses.table import Row, Wrong, grid_of
from support.ranks import job


@functools.cache
def folder() -> Path:
    """A folder that all ranks agree on."""
    own = tempfile.mkdtemp() if job.rank == 0 else None
    if own is not None:
        atexit.register(shutil.rmtree, own, ignore_errors=True)
    return Path(job.bcast(own))


def rows() -> dict[str, Row]:
    """By public name."""

    def model(P):
        layer = dnn.DistributedLinear(grid_of(P, 2).create_cartesian_topology_partition([job.size, 1]), 3, 2)
        layer.weight.grad = torch.ones_like(layer.weight)
        return {"model": layer}

    def saved(P):
        distdl.save(folder() / "good", model(P)["model"])
        return {**model(P), "path": folder() / "good"}

    root = [Wrong(-1, ValueError, "root -1"), Wrong(99, ValueError, "root 99")]
    path = [
        Wrong(3, TypeError, "path"),
        Wrong("/dev/null/no/file", (NotADirectoryError, FileNotFoundError), "No|Not"),
        Wrong("/", (FileExistsError, IsADirectoryError, PermissionError), "."),
    ]
    optimizer = [Wrong("Adam", RuntimeError, "param_groups")]
    number = [Wrong("many", ValueError, "many"), Wrong(None, TypeError, "None")]
    return {
        "sequential_gradients": Row(distdl.sequential_gradients, model, {"root": root}, free=("model",)),
        "parameter_count": Row(distdl.parameter_count, model, free=("model",), alone=True),
        "request_stop": Row(distdl.request_stop, lambda P: {}, alone=True),
        "stop_requested": Row(
            distdl.stop_requested,
            lambda P: {"P": P},
            {"P": [Wrong(v, TypeError, "has to be a distdl.Partition") for v in (3, "P", [0], MPI.COMM_WORLD)]},
        ),
        "check": Row(distdl.check, model, free=("model", "optimizer", "inputs")),
        "Finding": Row(
            distdl.Finding,
            lambda P: dict.fromkeys(distdl.Finding._fields, ""),
            alone=True,
            free=distdl.Finding._fields,
        ),
        "clip_grad_norm_": Row(
            distdl.clip_grad_norm_,
            lambda P: {**model(P), "max_norm": 1.0},
            {"max_norm": number, "norm_type": number},
            {"max_norm": 2.0, "norm_type": 1.0, "error_if_nonfinite": True},
            free=("model",),
        ),
        "update_bn": Row(
            distdl.update_bn, lambda P: {**model(P), "loader": []}, free=("loader", "model", "device"), alone=True
        ),
        "DataParallel": Row(
            distdl.DataParallel,
            lambda P: {"module": torch.nn.Linear(2, 2), "P_replicas": P},
            {"reduction": [Wrong("none", ValueError, "reduction")]},
            {"broadcast_buffers": False, "bucket_cap_mb": 1.0},
            free=("module", "P_replicas", "samples"),
        ),
        "GradScaler": Row(
            distdl.GradScaler,
            lambda P: {"device": "cpu"},
            {"growth_factor": [Wrong(0.5, AssertionError, "growth")]},
            free=("device", "init_scale", "backoff_factor", "growth_interval", "enabled"),
            alone=True,
        ),
        "save": Row(
            distdl.save,
            lambda P: {**model(P), "path": folder() / "row"},
            {"path": path, "optimizer": optimizer},
            {"path": folder() / "other", "asynchronous": True},
            free=("model", "values"),
        ),
        "load": Row(
            distdl.load,
            saved,
            {"path": path, "optimizer": optimizer, "rename": [Wrong(3, TypeError, "int")]},
            {"path": folder() / "other", "strict": False},
            free=("model",),
        ),
    }
