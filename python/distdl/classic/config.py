"""The choice of a backend, which is kept and has no effect: there is MPI alone."""

from __future__ import annotations

import os

from mpi4py import MPI

BACKEND_COMM_ENV = "DISTDL_BACKEND_COMM"
BACKEND_ARRAY_ENV = "DISTDL_BACKEND_ARRAY"
PRE_HOOK_CHECK_INPUT_CHANGED_ENV = "DISTDL_PRE_HOOK_CHECK_INPUT_CHANGED"

supported_backends = ("mpi",)

operation_map = {
    "sum": MPI.SUM,
    "prod": MPI.PROD,
    "product": MPI.PROD,
    "max": MPI.MAX,
    "min": MPI.MIN,
    "any": MPI.LOR,
    "all": MPI.LAND,
}
"""The operations of ``allreduce_data`` by the names that programs use."""

_set: dict[str, object] = {}


def get_default_comm() -> object:
    """The choice of :func:`set_backend`, or of the environment; "mpi" by default."""
    return _set.get("backend_comm", os.environ.get(BACKEND_COMM_ENV, "mpi"))


def get_default_array() -> object:
    """The choice of :func:`set_backend`, or of the environment; "numpy" by default."""
    return _set.get("backend_array", os.environ.get(BACKEND_ARRAY_ENV, "numpy"))


def get_default_pre_hook_setting() -> bool:
    """The choice of :func:`set_backend`, or of the environment; True by default.

    Layers always ask whether their input changed: without this question, ranks that disagree wait forever.
    """
    return bool(_set.get("check_input_changed", os.environ.get(PRE_HOOK_CHECK_INPUT_CHANGED_ENV, "1") != "0"))


def set_backend(
    backend_comm: object = None, backend_array: object = None, check_input_changed: bool | None = None
) -> None:
    """Accept any choice. Data moves over MPI, and is kept in the tensors of torch."""
    choices = {"backend_comm": backend_comm, "backend_array": backend_array, "check_input_changed": check_input_changed}
    _set.update({name: value for name, value in choices.items() if value is not None})
