"""Seldom functions, which are recorded by others."""

import torch
import torch.nn.functional as F

from support.rules.functions import IMAGE, MATRIX
from support.splitting import numbers

COMPOSED = {
    "block_diag": (lambda x: torch.block_diag(x, numbers(2, 3), x[0], x[0, 0]), MATRIX),
    "cartesian_prod": (lambda x: torch.cartesian_prod(x[:, 0], x[0], x[1, :2]), MATRIX),
    "cartesian_prod of one": (lambda x: torch.cartesian_prod(x[:, 0]), MATRIX),
    "combinations": (lambda x: torch.combinations(x[:, 0], 3), MATRIX),
    "combinations with replacement": (lambda x: torch.combinations(x[0], with_replacement=True), MATRIX),
    "tensor of tensors": (lambda x: x * torch.tensor([row.max() for row in x.detach()])[:, None], MATRIX),
    "tensor of lists": (lambda x: torch.tensor([[x.detach().max(), 1], [2.5, x.argmax()]]) * x[:2, :2], MATRIX),
    "tensor by name": (lambda x: x * torch.tensor(data=[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], dtype=torch.float64), MATRIX),
    "as_tensor of tensors": (lambda x: torch.as_tensor((x.detach().sum(), x.argmax())) * x[:, :2], MATRIX),
    "multi_dot": (lambda x: torch.linalg.multi_dot([x, x.mT, x]), MATRIX),
    "multi_dot of vectors": (lambda x: torch.linalg.multi_dot([x[:, 0], x, x.mT, x[:, 1]]), MATRIX),
    "multi_dot with a vector": (lambda x: torch.linalg.multi_dot((x, x.mT, x[:, 1])), MATRIX),
    "dist": (lambda x: torch.dist(x, x.sin(), 3), MATRIX),
    "pdist": (lambda x: torch.pdist(x), MATRIX),
    "pdist with p": (lambda x: torch.pdist(x, 1.0), MATRIX),
    "fill_diagonal_": (lambda x: (x * 1).fill_diagonal_(2.0), MATRIX),
    "fill_diagonal_ of a cube": (lambda x: (x * 1).fill_diagonal_(2.0), (4, 4, 4)),
    "vander": (lambda x: torch.linalg.vander(x), MATRIX),
    "vander with N": (lambda x: torch.linalg.vander(x, N=3), IMAGE),
    "put": (lambda x: torch.put(x, torch.tensor([[0, 7], [-1, 3]]), x[:2, :2] * 2), MATRIX),
    "put_ accumulating": (lambda x: (x * 1).put_(torch.tensor([2, 7, 2]), x[0, :3], accumulate=True), MATRIX),
    "sum_to_size": (lambda x: x.sum_to_size(1, 6, 1), IMAGE),
    "sum_to_size of a list": (lambda x: x.sum_to_size([5, 1]), MATRIX),
    "constant_pad_nd": (lambda x: torch.constant_pad_nd(x, (1, 2, 0, 1), 3.0), MATRIX),
    "grid_sampler": (lambda x: torch.grid_sampler(x, x[..., :2, :2].sin(), 0, 1, True), IMAGE),
    "linear_cross_entropy": (
        lambda x: F.linear_cross_entropy(x, numbers(4, 6), torch.arange(5) % 4, reduction="none")
        if hasattr(F, "linear_cross_entropy") else x, MATRIX,
    ),
    "sparse.mm": (lambda x: torch.sparse.mm(numbers(5, 5).to_sparse(), x), MATRIX),
    "triplet_margin_with_distance_loss": (
        lambda x: F.triplet_margin_with_distance_loss(x, x.sin(), x.cos(), distance_function=F.pairwise_distance,
                                                      swap=True), MATRIX,
    ),
    "fake_quantize_per_tensor_affine": (
        lambda x: torch.fake_quantize_per_tensor_affine(x.float(), 0.1, 0, -128, 127), IMAGE),
    "fake_quantize_per_channel_affine": (
        lambda x: torch.fake_quantize_per_channel_affine(
            x.float(), 0.1 + torch.arange(4.0) / 7, torch.zeros(4, dtype=torch.int32), 1, -9, 9), IMAGE),
}  # fmt: skip
