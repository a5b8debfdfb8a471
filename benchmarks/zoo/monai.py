"""Networks of MONAI: ``pip install --no-deps monai``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from monai.networks import nets

from zoo.entry import Entry, Shape


def entries() -> Iterator[Entry]:
    """Networks for volumes."""
    volume: Shape = (2, 1, 16, 16, 16)
    made: dict[str, tuple[Callable[[], torch.nn.Module], Shape]] = {
        "UNet": (partial(nets.UNet, 3, 1, 2, (4, 8, 16), (2, 2), num_res_units=2), volume),
        "BasicUNet": (partial(nets.BasicUNet, 3, 1, 2, (4, 4, 8, 8, 16, 4)), (1, 1, 32, 32, 32)),
        "SegResNet": (partial(nets.SegResNet, 3, 8, 1, 2), volume),
        "VNet": (partial(nets.VNet, 3, 1, 2), (1, 1, 32, 32, 32)),
        "DynUNet": (partial(nets.DynUNet, 3, 1, 2, [3, 3, 3], [1, 2, 2], [2, 2], filters=[4, 8, 16]), volume),
        "AHNet": (
            partial(nets.AHNet, spatial_dims=3, in_channels=1, out_channels=2, psp_block_num=3),
            (1, 1, 64, 64, 32),
        ),
        "HighResNet": (partial(nets.HighResNet, 3, 1, 2), volume),
        "DenseNet": (
            partial(nets.DenseNet, 3, 1, 2, init_features=8, growth_rate=4, block_config=(2, 2, 2)),
            (2, 1, 32, 32, 32),
        ),
    }
    for name, (make, shape) in made.items():
        yield Entry(f"MONAI {name}", make, (shape,))
