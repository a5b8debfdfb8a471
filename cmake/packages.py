"""Print, as one CMake list: torch's version, folder and C++ ABI; pybind11's CMake folder; mpi4py's headers; mpicxx."""

from importlib.metadata import PackageNotFoundError, files
from pathlib import Path

import mpi4py
import pybind11
import torch

try:  # the mpich wheel puts its compiler into the environment's bin, which need not be on PATH
    mpicxx = next(str(Path(file.locate()).resolve()) for file in files("mpich") or [] if file.name == "mpicxx")
except (PackageNotFoundError, StopIteration):
    mpicxx = "NOTFOUND"

print(
    torch.__version__,
    Path(torch.__file__).parent,
    int(torch.compiled_with_cxx11_abi()),
    pybind11.get_cmake_dir(),
    mpi4py.get_include(),
    mpicxx,
    sep=";",
)
