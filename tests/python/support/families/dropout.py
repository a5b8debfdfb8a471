"""Dropout and RReLU: with as_sequential=True and the same seed it drops what the twin drops."""

import torch

import distdl.nn as dnn
from support.families import Example
from support.misuses.table import Wrong
from support.tensors import values


def seeded(module, training):
    """Each call begins with the same seed."""
    module.register_forward_pre_hook(lambda *_: torch.manual_seed(3) and None)
    return module.train(training)


def example(kind, shape, training=True, **options):
    """A layer that draws as its twin does, or a layer in evaluation."""
    every = tuple(range(len(shape)))

    def layer(twin, P_x):
        mode = {"as_sequential": True} if training else {}
        return seeded(dnn.SEQUENTIAL[type(twin)].from_sequential(twin, P_x, **mode), training)

    # An option that changes its input in place gets a copy of it, which is no leaf.
    return Example(
        lambda: seeded(kind(**options), training),
        lambda: (values(shape) - 9.5,),
        len(shape),
        (every,),
        (every,),
        layer=layer,
    )


EXAMPLES = {
    f"{kind.__name__} of {len(shape)}d training={training} p={p}": example(kind, shape, training, p=p)
    for kind, shape in (
        (torch.nn.Dropout, (4, 3, 5)),
        (torch.nn.Dropout, (7,)),
        (torch.nn.Dropout1d, (4, 3, 5)),
        (torch.nn.Dropout1d, (6, 5)),
        (torch.nn.Dropout2d, (4, 3, 2, 3)),
        (torch.nn.Dropout3d, (2, 4, 2, 2, 3)),
        (torch.nn.Dropout3d, (6, 2, 2, 3)),
        (torch.nn.AlphaDropout, (4, 3, 5)),
        (torch.nn.FeatureAlphaDropout, (4, 3, 5)),
    )
    for training, p in ((True, 0.4), (False, 0.4))
}
EXAMPLES |= {
    f"{kind.__name__} p={p}": example(kind, (4, 3, 5), p=p)
    for kind in (torch.nn.Dropout, torch.nn.AlphaDropout)
    for p in (0.0, 1.0)
}
EXAMPLES["RReLU"] = example(torch.nn.RReLU, (4, 3, 5), training=False, lower=0.1, upper=0.4)
MISUSES = {
    "DistributedRReLU": {
        "lower": [Wrong(0.5, ValueError, "exceed")],
        "upper": [Wrong(0.05, ValueError, "exceed")],
    }
}
OTHER = {f"Distributed{name.split()[0]}": {"as_sequential": False} for name in EXAMPLES if "Dropout" in name}
