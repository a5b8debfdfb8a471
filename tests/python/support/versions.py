"""The version of torch: tables of tests that compare with what an older torch lacks ask for it."""

import torch

TORCH = tuple(int(number) for number in torch.__version__.split(".")[:2])
NORMS_HAVE_BIAS = TORCH >= (2, 12)
"""Whether batch, instance and group norm of torch.nn have the option."""
