"""Loads torch, mpi4py's MPI and the extension, in this order, since the extension uses the loaded libraries."""

import importlib
import multiprocessing
import sys
from pathlib import Path
from types import ModuleType

import mpi4py
import torch

_REINSTALL = "pip install --force-reinstall --no-deps <distdl's source folder>"
_REBUILD_WITH_MPI = (
    "distdl must be built with the MPI library that mpi4py uses. Put that library's mpicxx on PATH and run: "
    f"DISTDL_SYSTEM_MPI=1 {_REINSTALL}"
)


def load_extension() -> None:
    """Load `distdl._core`, or raise an ImportError with a solution. Not collective."""
    mpi = _load_mpi()  # first, so that an error on one rank ends the job, under python -m mpi4py
    _check_torch()
    mpi4py_library = _first_line(mpi.Get_library_version())
    try:
        core = importlib.import_module("distdl._core")
    except ImportError as error:
        raise ImportError(
            f"distdl: the extension does not load: {error}. mpi4py uses {mpi4py_library}; if it is an MPI library that "
            f"is missing, {_REBUILD_WITH_MPI}"
        ) from error
    if mpi.Is_initialized() and not core.mpi_initialized():
        extension_library = _first_line(core.mpi_library_version())
        raise ImportError(
            f"distdl: two MPI libraries are loaded ({_loaded_mpi_libraries()}). mpi4py uses, and has initialized, "
            f"{mpi4py_library}; distdl's extension uses another, {extension_library}. {_REBUILD_WITH_MPI}"
        )


def _check_torch() -> None:
    try:
        built = importlib.import_module("distdl._build_info").torch_version.split(".")[:2]
    except ModuleNotFoundError as error:
        raise ImportError(
            f"distdl: no compiled extension belongs to {__file__}, which looks like the source tree. Run: pip install "
            "<distdl's source folder>, and keep that folder's python/ off sys.path."
        ) from error
    if built != torch.__version__.split(".")[:2]:
        needed = ".".join(built)
        raise ImportError(
            f"distdl: built against torch {needed}, but torch {torch.__version__} is installed; their minor versions "
            f"must be equal. Run: pip install 'torch=={needed}.*', or {_REINSTALL}"
        )


def _is_child() -> bool:
    """Whether Python's multiprocessing started this process, such as a worker of torch's DataLoader.

    MPI_Init would end it: it has the environment of a rank, but is not a rank.
    """
    forkserver = sys.modules.get("multiprocessing.forkserver")
    serves = forkserver is not None and getattr(sys.modules["__main__"], "main", None) is forkserver.main
    # A spawned process has its name before it imports the program, and its parent after that.
    is_named = multiprocessing.current_process().name != "MainProcess"
    return serves or is_named or multiprocessing.parent_process() is not None


def _load_mpi() -> ModuleType:
    if _is_child():
        mpi4py.rc.initialize = mpi4py.rc.finalize = False
    try:
        return importlib.import_module("mpi4py.MPI")
    except (ImportError, RuntimeError) as error:
        raise ImportError(
            "distdl: mpi4py.MPI does not load. If no MPI library is found: load your cluster's MPI module, or name its "
            "library in the environment variable MPI4PY_LIBMPI (that of the mpich wheel is lib/libmpi.so.12), or run: "
            f"pip install 'mpich==5.0.*'. mpi4py says: {error}"
        ) from error


def _first_line(library_version: str) -> str:
    line = library_version.strip("\0\n ").splitlines()[0].split(",")[0]
    return " ".join(line.split())


def _loaded_mpi_libraries() -> str:
    mapped = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines()}
    return ", ".join(sorted(path for path in mapped if Path(path).name.startswith("libmpi")))


load_extension()
