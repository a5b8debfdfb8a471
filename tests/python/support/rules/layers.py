"""Layers and their functions, recurrent ones too."""

import torch
import torch.nn.functional as F
from torch.nn.utils.parametrizations import spectral_norm, weight_norm

from support.rules.functions import IMAGE, TOKENS, layer
from support.splitting import numbers


def pooled(pool, x, *window):
    """The results of max pooling, and the arguments that put them back."""
    return *pool(x, *window, return_indices=True), *window


BAGS = torch.tensor([0, 1, 5, 2, 1])
LAYERS = {
    "conv2d": (lambda x: F.conv2d(x, numbers(6, 2, 3, 3), numbers(6), padding=1, groups=2), IMAGE),
    "conv_transpose1d": (lambda x: F.conv_transpose1d(x, numbers(8, 3, 3), stride=2), (2, 8, 7)),
    "conv_transpose2d": (lambda x: F.conv_transpose2d(x, numbers(4, 2, 2, 3), numbers(4), 2, 1, 1, 2), IMAGE),
    "batch_norm": (lambda x: F.batch_norm(x, None, None, numbers(4), numbers(4), True), IMAGE),
    "batch_norm with a bias": (lambda x: F.batch_norm(x, None, None, None, numbers(4), True), IMAGE),
    "instance_norm with a weight": (lambda x: F.instance_norm(x, weight=numbers(4)), IMAGE),
    "group_norm with a weight": (lambda x: F.group_norm(x, 2, numbers(4)), IMAGE),
    "group_norm with a bias": (lambda x: F.group_norm(x, 2, bias=numbers(4)), IMAGE),
    "layer_norm with a bias": (lambda x: F.layer_norm(x, (5,), None, numbers(5)), IMAGE),
    "LayerNorm without a bias": (layer(lambda: torch.nn.LayerNorm(5, bias=False)), IMAGE),
    "interpolate without aliases": (
        lambda x: F.interpolate(x, scale_factor=0.5, mode="bilinear", antialias=True), IMAGE),
    "spectral_norm": (layer(lambda: spectral_norm(torch.nn.Conv2d(4, 3, 3))), IMAGE),
    "spectral_norm of before": (layer(lambda: torch.nn.utils.spectral_norm(torch.nn.Linear(5, 3))), IMAGE),
    "weight_norm of before": (layer(lambda: torch.nn.utils.weight_norm(torch.nn.Conv2d(4, 3, 3))), IMAGE),
    "weight_norm": (layer(lambda: weight_norm(torch.nn.Conv2d(4, 3, 3))), IMAGE),
    "batch_norm in evaluation": (lambda x: F.batch_norm(x, numbers(4), numbers(4).exp(), numbers(4)), IMAGE),
    "BatchNorm2d": (layer(lambda: torch.nn.BatchNorm2d(4)), IMAGE),
    "instance_norm": (lambda x: F.instance_norm(x), IMAGE),
    "group_norm": (lambda x: F.group_norm(x, 2, numbers(4), numbers(4)), IMAGE),
    "layer_norm": (lambda x: F.layer_norm(x, (5,), numbers(5)), IMAGE),
    "local_response_norm": (lambda x: F.local_response_norm(x, 3), IMAGE),
    "prelu": (layer(lambda: torch.nn.PReLU(4)), IMAGE),
    "prelu of one slope": (layer(torch.nn.PReLU), IMAGE),
    "max_pool2d": (lambda x: F.max_pool2d(x, 3, 2, 1), IMAGE),
    "avg_pool2d": (lambda x: F.avg_pool2d(x, 2, ceil_mode=True, count_include_pad=False), IMAGE),
    "lp_pool2d": (lambda x: F.lp_pool2d(x.abs(), 2, 2), IMAGE),
    "max_pool2d with indices": (lambda x: F.max_pool2d(x, 2, return_indices=True), IMAGE),
    "adaptive_max_pool2d with indices": (lambda x: F.adaptive_max_pool2d(x, 2, return_indices=True), IMAGE),
    "max_unpool1d": (lambda x: F.max_unpool1d(*pooled(F.max_pool1d, x, 3, 2)), (2, 4, 7)),
    "max_unpool2d": (lambda x: F.max_unpool2d(*pooled(F.max_pool2d, x, 2, 2), 0, (6, 5)), IMAGE),
    "max_unpool2d of windows that overlap": (
        lambda x: F.max_unpool2d(*pooled(F.max_pool2d, x, 3, (2, 1), 1), output_size=x.shape[-2:]), IMAGE),
    "max_unpool2d of other values": (
        lambda x: F.max_unpool2d(
            indices=pooled(F.max_pool2d, x, 2)[1], kernel_size=2, input=x[:, :, ::2, 1::2], output_size=(6, 5)), IMAGE),
    "max_unpool3d": (lambda x: F.max_unpool3d(*pooled(F.max_pool3d, x, (2, 1, 2))), (1, 2, 4, 3, 6)),
    "max_unpool3d without a batch": (lambda x: F.max_unpool3d(*pooled(F.max_pool3d, x, (2, 1, 2))), (2, 4, 3, 6)),
    "MaxUnpool2d": (
        layer(lambda: torch.nn.Sequential(torch.nn.MaxPool2d(2, 2, return_indices=True), torch.nn.MaxUnpool2d(2, 2)),
              lambda layers, x: layers[1](*layers[0](x), output_size=[2, 4, 6, 5])), IMAGE),
    "adaptive_max_pool2d and back": (
        lambda x: F.max_unpool2d(*F.adaptive_max_pool2d(x, (3, 2), return_indices=True), 2, output_size=(6, 5)), IMAGE),
    "rrelu": (lambda x: F.rrelu(x), IMAGE),
    "one_hot": (lambda x: F.one_hot(x.argmax(1), 4), IMAGE),
    "adaptive_avg_pool2d": (lambda x: F.adaptive_avg_pool2d(x, (3, 2)), IMAGE),
    "interpolate": (lambda x: F.interpolate(x, scale_factor=2, mode="nearest"), IMAGE),
    "interpolate by a list": (lambda x: F.interpolate(x, scale_factor=[1.5, 2.0], mode="bilinear"), IMAGE),
    "interpolate to a size": (lambda x: F.interpolate(x, (9, 4), mode="bilinear", align_corners=True), IMAGE),
    "grid_sample": (lambda x: F.grid_sample(x, numbers(2, 3, 7, 2).tanh(), align_corners=False), IMAGE),
    "grid_sample where the image says": (
        lambda x: F.grid_sample(x, x[:, :2].permute(0, 2, 3, 1).tanh(), align_corners=False), IMAGE),
    "affine_grid": (
        lambda x: F.affine_grid(x[:, :2, :3, 0], [2, 1, 4, 5], align_corners=False), IMAGE),
    "embedding": (lambda x: F.embedding(x.argmax(-1), numbers(5, 3)), IMAGE),
    "embedding_bag": (lambda x: F.embedding_bag(x[:, 0, :, 0].argsort(1)[:, :4], x[0, 1], padding_idx=-1), IMAGE),
    "embedding_bag with weights": (
        lambda x: F.embedding_bag(x[0, :, :, 0].argsort(1), x[0, 0], mode="sum", per_sample_weights=x[1, :, :, 0]),
        IMAGE),
    "embedding_bag of rows": (
        lambda x: F.embedding_bag(BAGS, x[0, 0], torch.tensor([0, 2, 2, 5]), include_last_offset=True), IMAGE),
    "embedding_bag of few with padding": (
        lambda x: F.embedding_bag(BAGS.int(), x[0, 0], torch.tensor([0, 2]).int(), padding_idx=5), IMAGE),
    "embedding_bag of maxima": (
        lambda x: F.embedding_bag(BAGS, x[0, 1], torch.tensor([0, 2, 2]), mode="max", padding_idx=1), IMAGE),
}  # fmt: skip

RECURRENT = {
    "LSTM": (layer(lambda: torch.nn.LSTM(8, 3, num_layers=2, batch_first=True)), TOKENS),
    "LSTM in both directions": (layer(lambda: torch.nn.LSTM(8, 3, bidirectional=True, proj_size=2)), TOKENS),
    "LSTM of one sequence": (layer(lambda: torch.nn.LSTM(8, 3)), (5, 8)),
    "GRU with a state": (
        layer(lambda: torch.nn.GRU(8, 3), lambda gru, x: gru(x, x[:1, :, :3].contiguous())), TOKENS),
    "RNN": (layer(lambda: torch.nn.RNN(8, 3, nonlinearity="relu", bias=False)), TOKENS),
    "RNN of one sequence in a batch": (layer(lambda: torch.nn.RNN(8, 3, batch_first=True)), (1, 5, 8)),
    "LSTMCell": (
        layer(lambda: torch.nn.LSTMCell(8, 3), lambda cell, x: cell(x[:, 1], cell(x[:, 0]))), TOKENS),
    "GRUCell": (layer(lambda: torch.nn.GRUCell(8, 3), lambda cell, x: cell(x[:, 1], cell(x[:, 0]))), TOKENS),
    "RNNCell": (layer(lambda: torch.nn.RNNCell(8, 3), lambda cell, x: cell(x[0], cell(x[1]))), TOKENS),
}  # fmt: skip
