"""The version of torch: tests that compare with what an older torch lacks ask for it."""

import pytest
import torch

TORCH = tuple(int(number) for number in torch.__version__.split(".")[:2])


def needs_torch(*version, what):
    """Mark a test that compares with `what`, which torch has from this version on."""
    return pytest.mark.skipif(version > TORCH, reason=f"torch has {what} from {'.'.join(map(str, version))} on")
