"""Builds the device where its sources have changed, in a folder for the version of torch, where ranks find it."""

import os
import subprocess
from pathlib import Path

import torch
from torch.utils import cpp_extension

sources = Path(__file__).parent
folder = sources.parents[1] / "build" / f"device-{torch.__version__}"
library = folder / "lagging.so"
compiler = [os.environ.get("CXX", "c++"), "-std=c++20", "-O1", "-fPIC", "-Wall", "-Wextra", "-Wno-unused-parameter"]
flags = [f"-isystem{path}" for path in cpp_extension.include_paths()]
needed = [f"-L{path}" for path in cpp_extension.library_paths()] + ["-ltorch_cpu", "-lc10", "-pthread"]


def built(source):
    """Starts the compiler."""
    return subprocess.Popen([*compiler, *flags, "-c", source, "-o", folder / f"{source.stem}.o"])


files = [*sources.glob("*.cpp"), *sources.glob("*.hpp")]
if not library.exists() or library.stat().st_mtime < max(file.stat().st_mtime for file in files):
    folder.mkdir(parents=True, exist_ok=True)
    running = [built(source) for source in sources.glob("*.cpp")]
    statuses = [process.wait() for process in running]
    if any(statuses):
        raise SystemExit(1)
    subprocess.run([*compiler, "-shared", *folder.glob("*.o"), *needed, "-o", library], check=True)
