"""Find the line of the user's program in which a recorded call stands."""

from __future__ import annotations

import os
import traceback
from pathlib import Path

import torch

_LIBRARIES = (f"{Path(torch.__file__).parent}{os.sep}", f"{Path(__file__).parents[2]}{os.sep}", "<")  # not torchvision


def source_line() -> str:
    """The innermost line of the program that belongs neither to torch nor to this package."""
    for frame in reversed(traceback.extract_stack()):
        if not frame.filename.startswith(_LIBRARIES):
            return f"{Path(frame.filename).name}:{frame.lineno}: {frame.line}"
    return "an unknown line"
