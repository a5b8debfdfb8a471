"""Models on the sphere: ``pip install --no-deps torch-harmonics``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
import torch_harmonics as harmonics
from torch_harmonics.examples import models

from zoo.entry import Entry, Shape


def between(layer: torch.nn.Module) -> torch.nn.Module:
    """A layer that may have no parameters, between two that have."""
    return torch.nn.Sequential(torch.nn.Conv2d(4, 4, 1), layer, torch.nn.Conv2d(4, 4, 1))


def transforms() -> torch.nn.Module:
    """Spherical harmonics and back."""
    return torch.nn.Sequential(harmonics.RealSHT(16, 32), harmonics.InverseRealSHT(16, 32))


def entries() -> Iterator[Entry]:
    """Layers and networks on grids of latitudes and longitudes."""
    wide, small, odd = (16, 32), (8, 16), (33, 66)
    network = {"img_size": odd, "in_chans": 3, "out_chans": 3}
    made: dict[str, tuple[Callable[[], torch.nn.Module], Shape]] = {
        "transforms": (transforms, wide),
        "DISCO": (partial(harmonics.DiscreteContinuousConvS2, 4, 4, wide, small, (3,)), wide),
        "DISCO transposed": (partial(harmonics.DiscreteContinuousConvTransposeS2, 4, 4, small, wide, (3,)), small),
        "resampling": (partial(harmonics.ResampleS2, *wide, *small), wide),
        "attention": (partial(harmonics.AttentionS2, 4, 2, wide, wide), wide),
        "attention of neighbors": (partial(harmonics.NeighborhoodAttentionS2, 4, wide, wide), wide),
    }
    for name, (layer, grid) in made.items():
        yield Entry(f"torch_harmonics {name}", lambda layer=layer: between(layer()), ((2, 4, *grid),))
    for kind, options in {
        "SphericalFourierNeuralOperator": {"embed_dim": 16, "num_layers": 2},
        "LocalSphericalNeuralOperator": {"embed_dim": 16, "num_layers": 2},
        "SphericalTransformer": {"embed_dim": 16, "num_layers": 2},
        "SphericalUNet": {"embed_dims": [8, 16, 16, 16]},
    }.items():
        yield Entry(f"torch_harmonics {kind}", partial(getattr(models, kind), **network, **options), ((2, 3, *odd),))
