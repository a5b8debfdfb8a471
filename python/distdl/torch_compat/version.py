"""The version of torch: other modules of this folder ask for it where a name alone does not tell versions apart."""

import torch

TORCH: tuple[int, ...] = tuple(int(number) for number in torch.__version__.split(".")[:2])
