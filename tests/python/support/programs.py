"""Programs of the pages and of the examples, whose folders are no packages."""

import importlib.util
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def load_program(path):
    """The module that a program is, by its path in the repository, without ``.py``."""
    name = path.replace("/", "_")
    spec = importlib.util.spec_from_file_location(name, ROOT / f"{path}.py")
    sys.modules[name] = program = importlib.util.module_from_spec(spec)  # where dataclasses look for it
    spec.loader.exec_module(program)
    return program
