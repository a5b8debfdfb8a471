"""Neural operators: ``pip install --no-deps neuraloperator tensorly tensorly-torch opt_einsum``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from neuralop import models

from zoo.entry import Entry, Shape


def entries() -> Iterator[Entry]:
    """Operators on lines, squares and cubes."""
    line, plane, volume = (2, 2, 32), (2, 2, 16, 16), (2, 2, 8, 8, 8)
    fno = partial(models.FNO, in_channels=2, out_channels=1, hidden_channels=8, n_layers=2)
    tfno = partial(models.TFNO, in_channels=2, out_channels=1, hidden_channels=8, n_layers=2, rank=0.5)
    uno = partial(
        models.UNO, 2, 1, 8, lifting_channels=8, projection_channels=8, n_layers=3, uno_out_channels=[8, 8, 8],
        uno_n_modes=[[4, 4]] * 3, uno_scalings=[[1.0, 1.0], [0.5, 0.5], [2.0, 2.0]],
        channel_mlp_skip="linear",
    )  # fmt: skip
    codano = partial(
        models.CODANO, 1, 8, 4, 8, n_layers=2, n_modes=[[4, 4]] * 2, n_heads=[2, 2],
        per_layer_scaling_factors=[[1, 1]] * 2, attention_scaling_factors=[1, 1],
    )  # fmt: skip
    made: dict[str, tuple[Callable[[], torch.nn.Module], Shape]] = {
        "FNO 1d": (partial(fno, (8,)), line),
        "FNO 2d": (partial(fno, (4, 4)), plane),
        "FNO 3d": (partial(fno, (4, 4, 4)), volume),
        "FNO 2d norm": (partial(fno, (4, 4), norm="instance_norm", positional_embedding=None), plane),
        "FNO 2d groups": (partial(fno, (4, 4), norm="group_norm", preactivation=True, stabilizer="tanh"), plane),
        "FNO 2d padded": (partial(fno, (4, 4), domain_padding=0.25, channel_mlp_dropout=0.2), plane),
        "FNO 2d scaled": (partial(fno, (4, 4), resolution_scaling_factor=[2, 0.5], fno_skip="identity"), plane),
        "FNO 2d separable": (partial(fno, (4, 4), separable=True, channel_mlp_skip="linear"), plane),
        "FNO 2d cp": (partial(fno, (4, 4), factorization="cp", rank=0.5), plane),
        "FNO 2d tt": (partial(fno, (4, 4), factorization="tt", rank=0.5, implementation="reconstructed"), plane),
        "TFNO 2d": (partial(tfno, (4, 4)), plane),
        "TFNO 3d": (partial(tfno, (4, 4, 4)), volume),
        "UNO 2d": (uno, plane),
        "CODANO 2d": (codano, plane),
        "UQNO 2d": (lambda: models.UQNO(fno((4, 4)), fno((4, 4))), plane),
    }
    for name, (make, shape) in made.items():
        yield Entry(f"neuralop {name}", make, (shape,), (2, 3) if len(shape) > 3 else (2,))
