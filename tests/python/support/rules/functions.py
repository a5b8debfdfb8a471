"""What the tables of cases share: sizes of inputs, and models of one layer."""

import torch

from support.models import Function

IMAGE, IMAGES, TOKENS, MATRIX = (2, 4, 6, 5), (4, 4, 6, 5), (2, 7, 8), (5, 6)


def layer(make, call=None):
    """A model of one layer, and of how it is called."""

    def made():
        torch.manual_seed(0)
        return Function(call or (lambda layer, x: layer(x)), make().double())

    return made
