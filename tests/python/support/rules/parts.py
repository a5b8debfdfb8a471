"""Parts of tensors, read and written."""

import numpy as np
import torch
import torch.nn.functional as F

from support.rules.functions import IMAGE
from support.splitting import numbers

PARTS = {
    "slices": (lambda x: x[:, 1:3, 2:], IMAGE),
    "slices with steps": (lambda x: x[..., ::2, 1::3], IMAGE),
    "slices from the end": (lambda x: x[:, :, -4:-1, :-2], IMAGE),
    "a number that is a tensor": (lambda x: x[:, torch.tensor(1), torch.arange(3)[2]], IMAGE),
    "slices that are empty": (lambda x: x[:, :, 4:2], IMAGE),
    "slices beyond the end": (lambda x: x[:, :, 3:99], IMAGE),
    "a number": (lambda x: x[:, :, 3], IMAGE),
    "a number from the end": (lambda x: x[..., -1, :], IMAGE),
    "numbers alone": (lambda x: x[0, 1, 2], IMAGE),
    "a new dimension": (lambda x: x[:, None, ..., 1:, 0], IMAGE),
    "patches": (lambda x: torch.cat([x[:, 0::2, 0::2], x[:, 1::2, 0::2], x[:, 0::2, 1::2]], -1), (2, 6, 4, 3)),
    "indices": (lambda x: x[:, torch.tensor([2, 0, 2])], IMAGE),
    "indices of two dimensions": (lambda x: x[:, :, torch.tensor([1, 0]), torch.tensor([4, 4])], IMAGE),
    "select": (lambda x: x.select(2, -2), IMAGE),
    "narrow": (lambda x: x.narrow(2, 1, 4), IMAGE),
    "narrow from the end": (lambda x: torch.narrow(x, -1, -3, 2), IMAGE),
    "index_select": (lambda x: x.index_select(2, torch.tensor([3, 1, 1])), IMAGE),
    "gather": (lambda x: x.gather(2, torch.argsort(x, 2)), IMAGE),
    "writing": (lambda x: _written(x, (slice(None), 1), 2.0), IMAGE),
    "writing a tensor": (lambda x: _written(x, (slice(None), slice(None), slice(1, 3)), x[:, :, :2] * 3), IMAGE),
    "part of a constant": (lambda x: x + numbers(9, 9)[2:8, 1:6], IMAGE),
    "unfold": (lambda x: x.unfold(2, 3, 2), IMAGE),
    "F.unfold": (lambda x: F.unfold(x, (2, 3), padding=1), IMAGE),
    "F.fold": (lambda x: F.fold(F.unfold(x, 2), (6, 5), 2), IMAGE),
}


WRITTEN = {
    "masked_scatter": (lambda x: x.masked_scatter(x > 0, x.flip(1) * 2), IMAGE),
    "masked_scatter of a row": (lambda x: x.masked_scatter(x[:, :1] > 0, torch.arange(300.0, dtype=x.dtype)), IMAGE),
    "masked_scatter_": (lambda x: x.clone().masked_scatter_(x[0] > 0, x.square()), IMAGE),
    "masked_scatter of nothing": (lambda x: x.masked_scatter(x > 99, x[:0]), IMAGE),
    "indices in an array": (lambda x: x[:, np.array([0, 1])], IMAGE),
    "indices in a list of lists": (lambda x: x[:, [[0, 1], [1, 2]]], IMAGE),
    "indices in lists apart": (lambda x: x[:, [0, 1], :, [1, 2]], IMAGE),
    "indices in lists behind a number": (lambda x: x[:, 0, [0, 5, 1]], IMAGE),
    "indices in an array and a new dimension": (lambda x: x[None, :, np.array([[2], [0]]), 1:], IMAGE),
    "a number in a tensor": (lambda x: x[:, torch.tensor(1), ..., torch.tensor([4, 0])], IMAGE),
    "numbers of an array": (lambda x: x[:, np.int64(1), np.int64(1) : np.int64(4)], IMAGE),
    "writing by a mask": (lambda x: _written(x, x < 0, 0.0), IMAGE),
    "writing by a mask of rows": (lambda x: _written(x, (slice(None), x[0, :, :, 0] < 0), 2.0), IMAGE),
    "writing by a mask of images": (lambda x: _written(x, x[:, 0, 0, 0] > 0, 2.0), IMAGE),
    "writing by a constant mask": (lambda x: _written(x, (..., numbers(6, 5) < 0), 2.0), IMAGE),
    "writing a vector by a mask": (lambda x: _written(x, x[:, :, :, 0] < 0, x[0, 0, 0].detach() * 2), IMAGE),
    "writing a mean by a mask": (lambda x: _written(x, x < 0, x.mean()), IMAGE),
    "writing by a mask in a part": (lambda x: _written(x, (slice(0, 1), x[0] < 0), -1.0), IMAGE),
    "writing by indices": (lambda x: _written(x, (slice(None), [0, 2]), 3.0), IMAGE),
    "writing a tensor by indices": (lambda x: _written(x, (slice(None), [0, 2]), x[:, 1:3] * 2), IMAGE),
    "writing a row by indices": (lambda x: _written(x, (slice(None), [0, 2]), x[0, 1].sin()), IMAGE),
    "writing by indices that a tensor says": (
        lambda x: _written(x, (slice(None), slice(None), x[0, 0, :, 0].argsort()[:3]), x[:, :, 3:] * 2), IMAGE),
    "writing by indices of two dimensions": (
        lambda x: _written(x, (slice(None), [0, 2], slice(None), [1, 4]), x[0, :2, None, :, 0] * 2), IMAGE),
    "writing into a part of a part": (lambda x: _written_into(x, lambda y: y[:, 1:]), IMAGE),
    "writing into a new dimension": (lambda x: _written(x, (slice(None), None, 2), x[:, :1] * 2), IMAGE),
    "index_put": (lambda x: x.index_put((torch.tensor([1, 0, 1]),), x[:, :1].mean(0) * 2, accumulate=True), IMAGE),
    "index_add": (lambda x: x.index_add(1, torch.tensor([1, 0, 1]), x[:, 1:] * 2, alpha=0.5), IMAGE),
    "index_copy": (lambda x: x.index_copy(2, torch.tensor([4, 0]), x[:, :, :2] * 2), IMAGE),
    "index_fill": (lambda x: x.index_fill(dim=-1, index=torch.tensor([4, 0]), value=2.0), IMAGE),
    "index_fill with a tensor": (lambda x: x.index_fill(2, torch.tensor([4, 0]), torch.tensor(1.5)), IMAGE),
    "select_scatter": (lambda x: torch.select_scatter(x, x[:, :, 0] * 2, 2, -1), IMAGE),
    "slice_scatter": (lambda x: x.slice_scatter(x[:, 1:3] * 2, 1, 0, None, 2), IMAGE),
    "take": (lambda x: x.take(torch.tensor([[0, 7, 2], [3, 3, 50]])), IMAGE),
    "take of each": (lambda x: x.take(x.argsort(1)), IMAGE),
}  # fmt: skip


def _written_into(x, part):
    x = x * 1.0
    part(x)[:, :, 2] = 0.5
    return x


def _written(x, index, value):
    x = x * 1.0
    x[index] = value
    return x


def unrecorded(part, write):
    """A case that writes into a part without gradients: other values, and the same derivative."""

    def call(x):
        y = part(x).sin()
        with torch.no_grad():
            write(y)
        return x + y

    return call, IMAGE


UNRECORDED = {
    "clamp_": unrecorded(lambda x: x[..., :1], lambda y: y.clamp_(0.1)),
    "clamp_ of a mean": unrecorded(lambda x: x.mean((2, 3), keepdim=True), lambda y: y.clamp_(0.1)),
    "setitem": unrecorded(lambda x: x[:1], lambda y: y.__setitem__((..., 0), 2.0)),
    "setitem of a tensor": unrecorded(lambda x: x[:, :1], lambda y: y.__setitem__(slice(1), y[:1] * 2)),
    "a part": unrecorded(lambda x: x[:, :, 2:3], lambda y: y[:1].mul_(3.0)),
    "copy_": unrecorded(lambda x: x[..., 3:4], lambda y: y.copy_(y.softmax(2))),
    "cumsum_": unrecorded(lambda x: x, lambda y: y.cumsum_(2)),
    "layer": unrecorded(lambda x: x[:, 1:2], torch.nn.ReLU(inplace=True)),
    "out": unrecorded(lambda x: x[..., :1], lambda y: torch.mul(y, 2.0, out=y)),
    "several": unrecorded(lambda x: x, lambda y: y.sub_(y.mean((0, 1), keepdim=True)).add_(1.0)[:, 0].zero_()),
}
UNRECORDED = {f"{name} without gradients": case for name, case in UNRECORDED.items()}
