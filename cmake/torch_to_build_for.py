"""Which torch the extension is built for: a provider of dynamic metadata, which pip asks before and after it builds.

A build that is isolated from the environment has to be told which torch that environment has. Under the same minor
version alone the extension loads, so the wheel depends on it.
"""

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

# safetensors reads and checks checkpoints; typing-extensions has what Python 3.10 lacks, and torch needs it as well.
_OTHERS = ["mpi4py>=4.1,<5", "numpy", "safetensors>=0.6", "typing-extensions"]
OLDEST, NEWEST = (2, 9), (2, 15)  # the README says what was tested with each

# -I, because pip hides the environment's packages by variables that only an interpreter without -I obeys.
_INSTALLED = [sys.executable, "-I", "-c", "from importlib.metadata import version; print(version('torch'))"]


def _installed() -> str | None:
    asked = subprocess.run(_INSTALLED, capture_output=True, text=True, check=False)
    return asked.stdout.strip() or None


def _asked() -> str | None:
    asked = os.environ.get("DISTDL_TORCH")
    if asked and not re.fullmatch(r"\d+\.\d+(\.\d+)?", asked):
        raise RuntimeError(f"distdl: DISTDL_TORCH={asked}; it has to be a version of torch, such as {_text(NEWEST)}")
    return asked


def _minor(torch: str) -> tuple[int, int]:
    major, minor = torch.split(".")[:2]
    return int(major), int(minor)


def _checked(torch: str) -> str:
    if not OLDEST <= _minor(torch) <= NEWEST:
        raise RuntimeError(
            f"distdl: torch {torch} is asked for or installed; distdl was tested with torch {_text(OLDEST)} to "
            f"{_text(NEWEST)}. Install one of these, for example: pip install 'torch=={_text(NEWEST)}.*'"
        )
    return torch


def _text(minor: tuple[int, int]) -> str:
    return ".".join(map(str, minor))


def get_requires_for_dynamic_metadata(settings: Mapping[str, object]) -> list[str]:
    """The torch to build with: DISTDL_TORCH, a version, else the environment's, else the newest that was tested."""
    if asked := _asked():
        return [f"torch=={_checked(asked)}" + ".*" * (asked.count(".") == 1)]
    if installed := _installed():
        return [f"torch=={_checked(installed).partition('+')[0]}"]
    return [f"torch>={_text(OLDEST)},<{_text((NEWEST[0], NEWEST[1] + 1))}"]


def _version() -> str:
    """The package's own, and the label DISTDL_LOCAL_VERSION, by which one of several wheels can be chosen."""
    text = (Path(__file__).parents[1] / "python" / "distdl" / "__init__.py").read_text()
    own = re.search(r'^__version__ = "(.*)"$', text, re.MULTILINE)[1]
    label = os.environ.get("DISTDL_LOCAL_VERSION")
    return f"{own}+{label}" if label else own


def dynamic_metadata(settings: Mapping[str, object], project: Mapping[str, object]) -> dict[str, object]:
    """The version of the wheel, and what it depends on: torch, of the minor version that it was built with."""
    try:
        torch = _checked(version("torch"))
    except PackageNotFoundError as error:  # a source distribution is made without torch
        raise RuntimeError(
            "distdl: the torch to build for is not installed. Run pip install without --no-build-isolation, or first: "
            f"pip install 'torch=={_text(NEWEST)}.*'"
        ) from error
    asked = _asked()
    if asked and not f"{torch}.".replace("+", ".").startswith(f"{asked}."):  # where pip installs nothing to build with
        raise RuntimeError(f"distdl: DISTDL_TORCH={asked}, but torch {torch} is installed where distdl is built")
    return {"version": _version(), "dependencies": [f"torch=={_text(_minor(torch))}.*", *_OTHERS]}


def dynamic_wheel(settings: Mapping[str, object]) -> dict[str, bool]:
    """Wheels that are built from one source distribution may depend on different versions of torch."""
    return {"dependencies": True}
