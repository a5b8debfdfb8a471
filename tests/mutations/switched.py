"""Switches of changes, for Python; switch.hpp has those of C++: M(17) is true while change 17 is tried."""

import mmap
import os
from pathlib import Path

SIZE = 1 << 16
path = os.environ.get("MUTATIONS_FILE")
with Path(path or os.devnull).open("r+b") as file:
    state = memoryview(mmap.mmap(file.fileno(), SIZE) if path else bytearray(SIZE))
tried, reached = state[:4].cast("i"), state[4:]
if not path:
    tried[0] = int(os.environ.get("MUTATION", "-1"))


def M(change):
    """Whether a change is tried. Whoever asks is recorded."""
    reached[change] = 1
    return tried[0] == change


M._dynamo_marked_constant = True  # as by torch.compiler.assume_constant_result
