"""Reductions, and losses."""

import torch
import torch.nn.functional as F

from support.rules.functions import IMAGE, MATRIX, layer
from support.splitting import numbers
from support.versions import TORCH

CLASSES = torch.randint(4, (2, 6, 5), generator=torch.Generator().manual_seed(0))
SEQUENCES, LABELS = (7, 3, 5), torch.tensor([[2, 3, 2], [4, 2, 0], [3, 4, 2]])


def ctc_loss(x, labels, **options):
    steps, lengths = torch.tensor([7, 5, 7]).clamp(max=len(x)), torch.tensor([3, 0 if labels.dim() == 1 else 2, 3])
    return F.ctc_loss(x.log_softmax(2), labels, steps, lengths, **options)


SUMS = {
    "sum": (lambda x: x.sum(), IMAGE),
    "sum in float32": (lambda x: torch.sum(x, (0, 2), dtype=torch.float32), IMAGE),
    "mean": (lambda x: x.mean((2, 3), keepdim=True), IMAGE),
    "var": (lambda x: x.var(dim=(2, 3)), IMAGE),
    "var of all": (lambda x: x.var(False), IMAGE),
    "std": (lambda x: torch.std(x, 1), IMAGE),
    "max": (lambda x: x.max(2), IMAGE),
    "amax": (lambda x: x.amax((1, 3)), IMAGE),
    "argmax": (lambda x: x.argmax(1), IMAGE),
    "argmax of all": (lambda x: x.argmax(), IMAGE),
    "norm": (lambda x: torch.norm(x, 2, 1), IMAGE),
    "vector_norm": (lambda x: torch.linalg.vector_norm(x, 2, (1, 2)), IMAGE),
    "logsumexp": (lambda x: x.logsumexp(1), IMAGE),
    "kthvalue": (lambda x: x.kthvalue(2, 1), IMAGE),
    "kthvalue that keeps": (lambda x: x.kthvalue(2, 1, True), IMAGE),
    "kthvalue of the last": (lambda x: torch.kthvalue(x, k=2, keepdim=False), IMAGE),
    "kthvalue by name": (lambda x: x.kthvalue(k=1, dim=-2, keepdim=True), IMAGE),
    "median": (lambda x: x.median(1), IMAGE),
    "median that keeps": (lambda x: x.median(dim=-2, keepdim=True), IMAGE),
    "median of all": (lambda x: x.median(), IMAGE),
    "nanmedian": (lambda x: x.nanmedian(-1, True), IMAGE),
    "mode": (lambda x: x.mode(), IMAGE),
    "mode that keeps": (lambda x: x.mode(-3, keepdim=True), IMAGE),
    "min": (lambda x: x.min(-1), IMAGE),
    "min that keeps": (lambda x: torch.min(x, dim=1, keepdim=True), IMAGE),
    "aminmax": (lambda x: (x if TORCH >= (2, 12) else x.detach()).aminmax(dim=2), IMAGE),  # 2.12 has a derivative
    "cummax": (lambda x: x.cummax(-2), IMAGE),
    "cummin by name": (lambda x: x.cummin(dim=1), IMAGE),
    "quantile": (lambda x: x.quantile(0.3, 2), IMAGE),
    "argmin": (lambda x: x.argmin(-1, keepdim=True), IMAGE),
    "matrix_norm": (lambda x: torch.linalg.matrix_norm(x), IMAGE),
    "matrix_norm of others": (lambda x: torch.linalg.matrix_norm(x, 1, (0, 2), keepdim=True), IMAGE),
    "larger": (lambda x: torch.max(x, x.flip(2)), IMAGE),
    "mse_loss": (lambda x: F.mse_loss(x, x.flip(2) * 0.5), IMAGE),
    "mse_loss summed": (lambda x: F.mse_loss(x, x.flip(2) * 0.5, reduction="sum"), IMAGE),
    "l1_loss of each": (lambda x: F.l1_loss(x, x.flip(2) * 0.5, reduction="none"), IMAGE),
    "smooth_l1_loss": (lambda x: F.smooth_l1_loss(x, 2 * x.detach(), beta=0.3), IMAGE),
    "huber_loss": (lambda x: F.huber_loss(x, 2 * x.detach(), delta=0.3), IMAGE),
    "bce": (lambda x: F.binary_cross_entropy(x.sigmoid(), x.detach().sigmoid()), IMAGE),
    "bce with logits": (lambda x: F.binary_cross_entropy_with_logits(x, (x > 0).double()), IMAGE),
    "cross_entropy": (lambda x: F.cross_entropy(x, CLASSES), IMAGE),
    "cross_entropy with weights": (
        lambda x: F.cross_entropy(x, CLASSES, numbers(4).exp(), ignore_index=2, label_smoothing=0.1), IMAGE),
    "cross_entropy summed": (lambda x: F.cross_entropy(x, CLASSES, reduction="sum"), IMAGE),
    "cross_entropy of each": (lambda x: F.cross_entropy(x, CLASSES, reduction="none"), IMAGE),
    "cross_entropy of probabilities": (lambda x: F.cross_entropy(x, x.detach().softmax(1)), IMAGE),
    "cross_entropy of rows": (lambda x: F.cross_entropy(x, torch.arange(5)), MATRIX),
    "nll_loss": (lambda x: F.nll_loss(x, CLASSES, numbers(4).exp()), IMAGE),
    "cosine_similarity": (lambda x: F.cosine_similarity(x, x.flip(2), 2), IMAGE),
    "pairwise_distance": (lambda x: F.pairwise_distance(x, x.flip(2) * 2), IMAGE),
    "cosine_similarity that broadcasts": (lambda x: F.cosine_similarity(x[:, :, None], x[:, None]), IMAGE),
    "pairwise_distance that keeps": (lambda x: F.pairwise_distance(x, x[:, :1] * 2, keepdim=True), IMAGE),
    "vecdot": (lambda x: torch.linalg.vecdot(x, x[0, 0] * 2, dim=-2), IMAGE),
    "margin_ranking_loss": (lambda x: F.margin_ranking_loss(x, x.flip(2) * 2, x.detach().sign(), 0.2), IMAGE),
    "gaussian_nll_loss": (lambda x: F.gaussian_nll_loss(x, x.flip(2), x.square() * 0.1, eps=0.05), IMAGE),
    "gaussian_nll_loss of each": (
        lambda x: F.gaussian_nll_loss(x, x.flip(0) * 2, x[..., 0].exp(), full=True, reduction="none"), IMAGE),
    "gaussian_nll_loss of one variance": (lambda x: F.gaussian_nll_loss(x, x.sin(), 0.3, True), IMAGE),
    "GaussianNLLLoss": (
        layer(lambda: torch.nn.GaussianNLLLoss(reduction="sum"), lambda layer, x: layer(x, x.sin(), x[..., :1].exp())),
        IMAGE),
    "hinge_embedding_loss": (lambda x: F.hinge_embedding_loss(x, x.detach().sign(), 0.7), IMAGE),
    "cosine_embedding_loss": (
        lambda x: F.cosine_embedding_loss(x, x.flip(0) * 2, x[:, 0].detach().sign(), 0.1), MATRIX),
    "ctc_loss": (lambda x: ctc_loss(x, LABELS), SEQUENCES),
    "ctc_loss of each": (lambda x: ctc_loss(x, LABELS, reduction="none", blank=1), SEQUENCES),
    "ctc_loss that sums": (lambda x: ctc_loss(x[:3], LABELS, reduction="sum", zero_infinity=True), SEQUENCES),
    "ctc_loss of labels in a row": (lambda x: ctc_loss(x, torch.cat([LABELS[0], LABELS[2]])), SEQUENCES),
    "ctc_loss of a sequence": (lambda x: F.ctc_loss(x[:, 0], LABELS[0], torch.tensor(7), torch.tensor(3)), SEQUENCES),
    "triplet_margin_loss": (lambda x: F.triplet_margin_loss(x, x.flip(2), x.sin(), swap=True), IMAGE),
    "triplet_margin_loss of each": (lambda x: F.triplet_margin_loss(x, x.flip(0), x.sin(), reduction="none"), MATRIX),
    "multi_margin_loss": (lambda x: F.multi_margin_loss(x, torch.arange(5), weight=numbers(6).exp()), MATRIX),
    "multi_margin_loss of as many classes as rows": (
        lambda x: F.multi_margin_loss(x, torch.arange(5), weight=numbers(5).exp()), (5, 5)),
    "multilabel_soft_margin_loss of as many classes as rows": (
        lambda x: F.multilabel_soft_margin_loss(x, (x > 0).double(), numbers(5).exp()), (5, 5)),
    "multilabel_margin_loss": (lambda x: F.multilabel_margin_loss(x, CLASSES[0, :5, :1].expand(5, 6) % 4), MATRIX),
    "multilabel_soft_margin_loss": (
        lambda x: F.multilabel_soft_margin_loss(x, (x > 0).double(), numbers(6).exp()), MATRIX),
    "histc": (lambda x: torch.histc(x.detach(), 5), IMAGE),
    "histc between": (lambda x: x.detach().histc(bins=4, min=-1, max=2), IMAGE),
    "corrcoef": (lambda x: torch.corrcoef(x), MATRIX),
    "corrcoef of a row": (lambda x: torch.corrcoef(x[0]), MATRIX),
    "cov": (lambda x: torch.cov(x, correction=0), MATRIX),
    "cov with weights": (
        lambda x: x.cov(fweights=torch.arange(1, 7), aweights=x[0].detach().exp()), MATRIX),
    "mean where a mask is true": (lambda x: torch.where(x > 0, x, 0).sum() / (x > 0).sum(), IMAGE),
    "kl_div": (lambda x: F.kl_div(x.log_softmax(1), x.softmax(1), reduction="batchmean"), IMAGE),
}  # fmt: skip

SUMS |= {
    "mse_loss with weights": (lambda x: F.mse_loss(x, x.flip(2) * 0.5, weight=1 + x.detach().abs()), IMAGE),
    "l1_loss with weights": (lambda x: F.l1_loss(x, x.flip(2) * 0.5, weight=1 + x.abs()), IMAGE),
    "l1_loss with weights summed": (lambda x: F.l1_loss(x, x.sin(), reduction="sum", weight=1 + x.abs()), IMAGE),
    "huber_loss with weights": (lambda x: F.huber_loss(x, x.flip(2) * 0.5, weight=1 + x.abs()), IMAGE),
    "bce with weights that broadcast": (
        lambda x: F.binary_cross_entropy(x.sigmoid(), x.detach().sigmoid(), numbers(4, 1, 1).exp()), IMAGE),
    "bce with logits and weights that broadcast": (
        lambda x: F.binary_cross_entropy_with_logits(
            x, (x > 0).double(), numbers(5).exp(), pos_weight=numbers(4, 1, 1).exp()), IMAGE),
    "bce with logits and weights of each": (
        lambda x: F.binary_cross_entropy_with_logits(
            x, (x > 0).double(), numbers(2, 1, 1, 5).exp(), reduction="none"), IMAGE),
}  # fmt: skip
