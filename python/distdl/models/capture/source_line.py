"""Find the line of the user's program in which a recorded call stands."""

from __future__ import annotations

import contextlib
import linecache
import os
import sys
from pathlib import Path
from types import FrameType

import torch

_LIBRARIES = (  # not torchvision
    f"{Path(torch.__file__).parent}{os.sep}", f"{Path(__file__).parents[2]}{os.sep}", contextlib.__file__, "<"
)  # fmt: skip


def source_line(error: BaseException | None = None) -> str:
    """The innermost line of the program, here or where an error was raised, that is not torch's or this package's."""
    frame: FrameType | None = sys._getframe(1)
    trace = None if error is None else error.__traceback__
    while trace is not None:
        frame, trace = trace.tb_frame, trace.tb_next
    while frame is not None:
        file, number = frame.f_code.co_filename, frame.f_lineno
        if not file.startswith(_LIBRARIES):
            return f"{os.path.basename(file)}:{number}: {linecache.getline(file, number).strip()}"  # noqa: PTH119  (fast)
        frame = frame.f_back
    return "an unknown line"
