"""The rules of operations: for each a small function, split in all ways, beside itself in one process."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.nn.utils.parametrizations import spectral_norm, weight_norm

import distdl
from distdl.models.capture.decompositions import DECOMPOSITIONS, INLINED
from distdl.models.capture.functions import key_of
from distdl.models.rules import RULES
from support.blocks import grid
from support.growth import assert_stays
from support.models import Function
from support.ranks import job, together
from support.splitting import numbers, off_when_split, splits, step
from support.versions import TORCH

P_world = distdl.Partition(job)


def layer(make, call=None):
    """A model of one layer, and of how it is called."""

    def made():
        torch.manual_seed(0)
        return Function(call or (lambda layer, x: layer(x)), make().double())

    return made


IMAGE, IMAGES, TOKENS, MATRIX = (2, 4, 6, 5), (4, 4, 6, 5), (2, 7, 8), (5, 6)

SHAPES = {
    "pad": (lambda x: F.pad(x, (1, 2, 0, 3)), IMAGE),
    "pad and crop": (lambda x: F.pad(x, (-1, 2, 2, -3), value=1.5), IMAGE),
    "pad of the batch": (lambda x: F.pad(x, (0, 0, 0, 0, 0, 0, 2, 1), value=-1.0), IMAGE),
    "pad to twice the size": (lambda x: F.pad(x, (0, 0, 7, 6)), IMAGE),
    "pad by reflection": (lambda x: F.pad(x, (1, 2, 2, 1), mode="reflect"), IMAGE),
    "pad by replication": (lambda x: F.pad(x, (1, 2, 0, 1), mode="replicate"), IMAGE),
    "pad in a circle": (lambda x: F.pad(x, (1, 2, 2, 1), mode="circular"), IMAGE),
    "flip": (lambda x: torch.flip(x, [-1, 2]), IMAGE),
    "flip of arguments": (lambda x: x.flip(0, 2), IMAGE),
    "fliplr": (lambda x: x.fliplr(), IMAGE),
    "flipud": (lambda x: x.flipud(), IMAGE),
    "roll": (lambda x: torch.roll(x, (2, -1), (2, 3)), IMAGE),
    "roll far": (lambda x: torch.roll(x, 15, 2), IMAGE),
    "roll twice": (lambda x: x.roll((1, 2), (2, 2)), IMAGE),
    "roll of all": (lambda x: torch.roll(x, 5), IMAGE),
    "rot90": (lambda x: torch.rot90(x, 1, (2, 3)), IMAGE),
    "rolled constant": (lambda x: x + torch.roll(torch.arange(5.0, dtype=torch.float64), 2, 0), IMAGE),
    "pixel_shuffle": (lambda x: F.pixel_shuffle(x, 2), IMAGE),
    "pixel_unshuffle": (lambda x: F.pixel_unshuffle(x, 2), (2, 3, 6, 4)),
    "PixelShuffle": (layer(lambda: torch.nn.PixelShuffle(2)), IMAGE),
    "channel_shuffle": (lambda x: F.channel_shuffle(x, 2), IMAGE),
    "cat along rows": (lambda x: torch.cat([x[:, :, :2], x, x * 2], 2), IMAGE),
    "cat of parameters": (lambda x: torch.cat([numbers(2, 4, 1, 5), x], -2), IMAGE),
    "cat of nothing": (lambda x: torch.cat([x[:, :, :0], x], 2), IMAGE),
    "hstack": (lambda x: torch.hstack([x, x]), MATRIX),
    "vstack": (lambda x: torch.vstack([x, x * 2]), MATRIX),
    "dstack": (lambda x: torch.dstack([x, x]), MATRIX),
    "stack": (lambda x: torch.stack([x, x * 2], 1), IMAGE),
    "chunk": (lambda x: torch.chunk(x, 3, 2), IMAGE),
    "split": (lambda x: x.split([1, 5], -2), IMAGE),
    "unbind": (lambda x: x.unbind(1), IMAGE),
    "chunk of rows in uneven parts": (lambda x: [part * 2 for part in x.chunk(4, dim=2)], IMAGE),
    "split of columns by name": (lambda x: torch.split(x, split_size_or_sections=2, dim=-1), IMAGE),
    "tensor_split": (lambda x: torch.tensor_split(x, (1, 1, 4), 2), IMAGE),
    "unbind of the last": (lambda x: x.unbind(dim=-1)[1:4], IMAGE),
    "reshape": (lambda x: x.reshape(2, 2, 2, 3, 10), IMAGE),
    "flatten": (lambda x: x.flatten(1), IMAGE),
    "permute": (lambda x: x.permute(0, 2, 3, 1), IMAGE),
    "expand": (lambda x: x[:, :1].expand(-1, 3, -1, -1), IMAGE),
    "repeat": (lambda x: x.repeat(1, 2, 1, 1), IMAGE),
    "cumsum": (lambda x: x.cumsum(2), IMAGE),
    "renorm": (lambda x: torch.renorm(x, 2, 1, 0.5), IMAGE),
    "softmax": (lambda x: F.softmax(x, 2), IMAGE),
    "sort": (lambda x: x.sort(-1, descending=True), IMAGE),
    "topk": (lambda x: x.topk(2, 1), IMAGE),
    "diff": (lambda x: x.diff(dim=2), IMAGE),
    "normalize": (lambda x: F.normalize(x, dim=2), IMAGE),
}

SHAPES |= {
    "diff between others": (lambda x: x.diff(dim=2, prepend=x[:, :, :1] * 2, append=numbers(2, 4, 3, 5)), IMAGE),
    "trapezoid": (lambda x: torch.trapezoid(x, dx=0.5, dim=2), IMAGE),
    "trapezoid of places": (lambda x: torch.trapezoid(x, numbers(5)), IMAGE),
    "cumulative_trapezoid of places": (lambda x: torch.cumulative_trapezoid(x, x[0].sin(), dim=-2), IMAGE),
    "broadcast_tensors": (lambda x: torch.broadcast_tensors(x[:, :1], x[:1, :, :, :1]), IMAGE),
    "hsplit": (lambda x: x.hsplit(2), IMAGE),
    "vsplit": (lambda x: torch.vsplit(x, 2), IMAGE),
    "gradient": (lambda x: torch.gradient(x, dim=2, edge_order=2), IMAGE),
    "gradient of all": (lambda x: torch.gradient(x, spacing=0.5), IMAGE),
    "gradient by coordinates": (
        lambda x: torch.gradient(x, spacing=[numbers(6).sort().values, numbers(5).sort().values], dim=[2, 3]),
        IMAGE,
    ),
    "dsplit": (lambda x: torch.dsplit(x, [2, 3]), IMAGE),
    "msort": (lambda x: x.msort(), IMAGE),
    "atleast_3d": (lambda x: torch.atleast_3d(x), MATRIX),
    "softmax of torch.special": (lambda x: torch.special.softmax(x, 1), IMAGE),
}

COMPLEX = {
    "view_as_complex": (lambda x: torch.view_as_complex(x.reshape(4, 4, 3, 5, 2)), IMAGES),
    "view_as_complex of others": (lambda x: torch.view_as_complex(torch.stack([x, x.exp()], -1)).angle(), IMAGES),
    "view_as_real": (lambda x: torch.view_as_real(torch.complex(x, x.sin()) * 1j), IMAGES),
    "polar": (lambda x: torch.polar(x.exp(), x), IMAGES),
    "magnitude of a sum": (lambda x: torch.complex(x, x.sin()).sum().abs(), IMAGES),
    "a sum as the phase": (lambda x: torch.polar(x.sum().exp(), x.mean()), IMAGES),
    "fft of few images": (lambda x: torch.fft.fft(x, dim=2).abs(), (2, 4, 6, 5)),
    "fft": (lambda x: torch.fft.fft(x, dim=2), IMAGES),
    "fft of the last": (lambda x: torch.fft.fft(x, 7, norm="ortho"), IMAGES),
    "fft and back": (lambda x: torch.fft.ifft(torch.fft.fft(x, dim=1) * numbers(4, 1, 1), dim=1).real, IMAGES),
    "rfft and back": (lambda x: torch.fft.irfft(torch.fft.rfft(x, dim=2), 6, 2), IMAGES),
    "hfft": (lambda x: torch.fft.hfft(torch.complex(x, x.sin())), IMAGES),
    "fft2": (lambda x: torch.fft.fft2(x), IMAGES),
    "ifft2 of others": (lambda x: torch.fft.ifft2(x, dim=(0, 2)), IMAGES),
    "fftn": (lambda x: torch.fft.fftn(x), IMAGES),
    "ifftn of a size": (lambda x: torch.fft.ifftn(x, (4,)), IMAGES),
    "rfft2 and back": (lambda x: torch.fft.irfft2(torch.fft.rfft2(x), (6, 5)), IMAGES),
    "rfftn and back": (lambda x: torch.fft.irfftn(torch.fft.rfftn(x, dim=[1, 2]), dim=(1, 2)), IMAGES),
    "fftshift": (lambda x: torch.fft.fftshift(x, 2), IMAGES),
    "ifftshift": (lambda x: torch.fft.ifftshift(x), IMAGES),
    "fftfreq": (lambda x: x * torch.fft.fftfreq(5) + torch.fft.rfftfreq(9), IMAGES),
    "fft of two dimensions one by one": (lambda x: torch.fft.fft(torch.fft.fft(x, dim=2), dim=3).abs(), IMAGES),
    "stft": (lambda x: torch.stft(x, 4, window=torch.hann_window(4).double(), return_complex=True), (4, 16)),
}  # fmt: skip

ELEMENTS = {
    "isclose": (lambda x: torch.isclose(x, x.round(), atol=0.2), IMAGE),
    "threshold in place": (lambda x: F.threshold(x * 2, 0.1, 20.0, inplace=True), IMAGE),
    "erfinv": (lambda x: torch.erfinv(x.tanh()), IMAGE),
    "threshold": (lambda x: F.threshold(x, 0.1, 20.0), IMAGE),
    "functions of torch.special": (lambda x: torch.special.entr(x.exp()) + torch.special.ndtr(x), IMAGE),
    "xlog1py": (lambda x: torch.special.xlog1py(x[:1], x.exp()), IMAGE),
    "polygamma": (lambda x: torch.polygamma(1, x.exp()), IMAGE),
    "igamma": (lambda x: torch.igamma(x.detach().exp(), x[:, :1].exp()), IMAGE),
    "heaviside": (lambda x: torch.heaviside(x.detach(), x[:, :1].detach()), IMAGE),
    "shifts": (lambda x: ((x * 9).int() << 2) >> 1, IMAGE),
    "frexp": (lambda x: torch.frexp(x), IMAGE),
    "isin": (lambda x: torch.isin(x.round(), torch.tensor([0.0, 1.0], dtype=torch.float64)), IMAGE),
    "bucketize": (lambda x: torch.bucketize(x, numbers(9).sort().values, right=True), IMAGE),
    "searchsorted": (lambda x: torch.searchsorted(numbers(9).sort().values, x), IMAGE),
    "searchsorted of rows": (lambda x: torch.searchsorted(x.sort().values, x * 0.9, side="right"), IMAGE),
}

PARTS = {
    "slices": (lambda x: x[:, 1:3, 2:], IMAGE),
    "slices with steps": (lambda x: x[..., ::2, 1::3], IMAGE),
    "slices from the end": (lambda x: x[:, :, -4:-1, :-2], IMAGE),
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


CLASSES = torch.randint(4, (2, 6, 5), generator=torch.Generator().manual_seed(0))

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
        layer(lambda: torch.nn.GaussianNLLLoss(reduction="sum"), lambda layer, x: layer(x, x.sin(), x[:, :1].exp())),
        IMAGE),
    "hinge_embedding_loss": (lambda x: F.hinge_embedding_loss(x, x.detach().sign(), 0.7), IMAGE),
    "cosine_embedding_loss": (
        lambda x: F.cosine_embedding_loss(x, x.flip(0) * 2, x[:, 0].detach().sign(), 0.1), MATRIX),
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

PRODUCTS = {
    "matmul": (lambda x: x @ x.mT, IMAGE),
    "matrix and vector": (lambda x: x @ numbers(6), MATRIX),
    "linear": (layer(lambda: torch.nn.Linear(5, 3)), IMAGE),
    "einsum": (lambda x: torch.einsum("bchw,bcvw->bhv", x, x), IMAGE),
    "einsum with an ellipsis": (lambda x: torch.einsum("...hw,...vw->...hv", x, x), IMAGE),
    "einsum of ellipses that broadcast": (lambda x: torch.einsum("...w,wk->k...", x, numbers(5, 3)), IMAGE),
    "einsum without a result": (lambda x: torch.einsum("bchw,kc", x, numbers(3, 4)), IMAGE),
    "einsum of a trace": (lambda x: torch.einsum("bii->b", x[:, :3, :3, 0]), IMAGE),
    "einsum of size 1": (lambda x: torch.einsum("bchw,bcow->bchw", x, x[:, :, :1]), IMAGE),
    "tensordot": (lambda x: torch.tensordot(x, numbers(5, 2, 6), ([3, 2], [0, 2])), IMAGE),
    "tensordot of neighbors": (lambda x: torch.tensordot(x, x.permute(2, 3, 0, 1), 2), IMAGE),
    "inner": (lambda x: torch.inner(x, x[0] * 2), IMAGE),
    "kron": (lambda x: torch.kron(x, numbers(2, 3)), MATRIX),
    "kron of images": (lambda x: torch.kron(numbers(3, 1, 2), x), IMAGE),
    "cross": (lambda x: torch.cross(x, x.sin()[:1], 1), (6, 3, 2)),
    "linalg.cross": (lambda x: torch.linalg.cross(x, x.sin(), dim=-2), (6, 3, 2)),
    "addmv": (lambda x: torch.addmv(x[:, 0], x, x[0]), MATRIX),
    "addr": (lambda x: torch.addr(x, x[:, 0], x[0]), MATRIX),
    "det": (lambda x: torch.linalg.det(x @ x.mT), (4, 2, 3, 3)),
    "inv": (lambda x: torch.linalg.inv(x @ x.mT), (4, 2, 3, 3)),
    "slogdet": (lambda x: torch.linalg.slogdet(x @ x.mT), (4, 2, 3, 3)),
    "eigh": (lambda x: torch.linalg.eigh(x @ x.mT).eigenvalues, (4, 2, 3, 3)),
    "eigvalsh": (lambda x: torch.linalg.eigvalsh(x @ x.mT), (4, 2, 3, 3)),
    "svdvals": (lambda x: torch.linalg.svdvals(x), (4, 2, 3, 4)),
    "qr": (lambda x: torch.linalg.qr(x), (4, 2, 4, 3)),
    "cholesky": (lambda x: torch.linalg.cholesky(x @ x.mT), (4, 2, 3, 3)),
    "matrix_exp": (lambda x: torch.linalg.matrix_exp(x), (4, 2, 3, 3)),
    "matrix_power": (lambda x: torch.linalg.matrix_power(x, 3), (4, 2, 3, 3)),
    "pinv": (lambda x: torch.linalg.pinv(x), (3, 4, 3)),
    "inverse of one": (lambda x: torch.inverse(x), (3, 3)),
    "solve": (lambda x: torch.linalg.solve(x @ x.mT, x[:, :1]), (4, 2, 3, 3)),
    "solve of vectors": (lambda x: torch.linalg.solve(x @ x.mT, x[..., 0]), (4, 2, 3, 3)),
    "solve of one matrix": (lambda x: torch.linalg.solve(x @ x.mT, x[0]), (6, 3, 3)),
    "solve_triangular": (lambda x: torch.linalg.solve_triangular(x, x.sin(), upper=True), (4, 2, 3, 3)),
    "cholesky_solve": (lambda x: torch.cholesky_solve(x.sin(), x), (4, 2, 3, 3)),
    "diagonal": (lambda x: x.diagonal(), IMAGE),
    "diagonal of others": (lambda x: torch.diagonal(x, 1, 2, dim2=-1), IMAGE),
    "linalg.diagonal": (lambda x: torch.linalg.diagonal(x, offset=-1), IMAGE),
    "diag_embed": (lambda x: torch.diag_embed(x[0], 1, 0, 2), IMAGE),
    "diag": (lambda x: torch.diag(x), MATRIX),
    "trace": (lambda x: torch.trace(x), MATRIX),
    "cdist": (lambda x: torch.cdist(x, x * 2), IMAGE),
    "outer": (lambda x: torch.outer(x[0], x[1]), MATRIX),
    "bilinear": (layer(lambda: torch.nn.Bilinear(5, 5, 3), lambda layer, x: layer(x, x.sin())), IMAGE),
    "triu": (lambda x: x.triu(1), IMAGE),
    "function without a rule of constants": (lambda x: x @ torch.linalg.matrix_exp(numbers(5, 5)), IMAGE),
    "layer of constants": (lambda x: x + F.interpolate(numbers(1, 4, 3, 5), (6, 5)), IMAGE),
    "convolution of constants": (lambda x: x + F.conv2d(numbers(1, 4, 6, 5), numbers(4, 4, 1, 1)), IMAGE),
    "baddbmm": (lambda x: torch.baddbmm(x[:, 0], x[:, 1], numbers(2, 5, 5)), IMAGE),
}


def attended(**options):
    """Attention of tokens as heads of 2 features, among themselves."""

    def call(x):
        q = x.unflatten(-1, (4, 2)).transpose(1, 2)
        k = q[:, ::2] if options.get("enable_gqa") else q
        return F.scaled_dot_product_attention(q, k * 0.7, k.sin(), **options)

    return call, TOKENS


def multihead(options=None, **call):
    """torch.nn.MultiheadAttention, of the tokens among themselves if the call does not say otherwise."""
    options = {"batch_first": True} | (options or {})
    others = call.pop("others", lambda x: (x, x))
    made = layer(
        lambda: torch.nn.MultiheadAttention(8, 2, **options),
        lambda module, x: [result for result in module(x, *others(x), **call) if result is not None],
    )
    return made, TOKENS


def functional(options=None, others=lambda x: (x, x), query=lambda x: x, shape=(7, 2, 8), **call):
    """As other models call it, with the parameters of a layer."""

    def attend(layer, x):
        y, weights = F.multi_head_attention_forward(
            query(x), *others(x), 8, 2, layer.in_proj_weight, layer.in_proj_bias, layer.bias_k, layer.bias_v,
            layer.add_zero_attn, 0.0, layer.out_proj.weight, layer.out_proj.bias, **separate(layer), **call
        )  # fmt: skip
        return y if weights is None else (y, weights)

    def separate(layer):
        names = [f"{name}_proj_weight" for name in "qkv"]
        own = {name: getattr(layer, name) for name in names if layer.in_proj_weight is None}
        return own | {"use_separate_proj_weight": bool(own)}

    return layer(lambda: torch.nn.MultiheadAttention(8, 2, **(options or {})), attend), shape


LOWER = torch.ones(7, 7).triu(1).bool()
PADDING = torch.arange(7).expand(2, 7) > torch.tensor([[4], [5]])

ATTENTION = {
    "attention": attended(),
    "attention scaled": attended(scale=0.3),
    "attention causal": attended(is_causal=True),
    "attention of groups": attended(enable_gqa=True),
    "attention with a mask": attended(attn_mask=~LOWER),
    "attention with scores": attended(attn_mask=numbers(2, 1, 7, 7)),
    "attention with a row": attended(attn_mask=numbers(1, 7)),
    "MultiheadAttention": multihead(need_weights=False),
    "MultiheadAttention with weights": multihead(),
    "MultiheadAttention with weights of heads": multihead(average_attn_weights=False),
    "MultiheadAttention with a mask": multihead(need_weights=False, attn_mask=LOWER),
    "MultiheadAttention with masks of heads": multihead(need_weights=False, attn_mask=numbers(4, 7, 7)),
    "MultiheadAttention with padding": multihead(need_weights=False, key_padding_mask=PADDING),
    "MultiheadAttention of other keys": multihead(need_weights=False, others=lambda x: (x[:, :4], x[:, :4].sin())),
    "MultiheadAttention of more keys": multihead(others=lambda x: (torch.cat([x, x], 1),) * 2),
    "MultiheadAttention with the sequence first": multihead({"batch_first": False}),
    "functional": functional(need_weights=False),
    "functional with weights": functional(training=False),
    "functional with weights of heads": functional(average_attn_weights=False),
    "functional of one sequence": functional(shape=(7, 8)),
    "functional of the first token": functional(query=lambda x: x[:1], need_weights=False, training=False),
    "functional of other keys": functional(others=lambda x: (x[:4], x[:4].sin())),
    "functional of as many features": functional({"vdim": 6}, others=lambda x: (x, x[..., :6]), need_weights=False),
    "functional without a bias": functional({"bias": False}, need_weights=False, key_padding_mask=PADDING),
    "functional with further keys": functional({"add_bias_kv": True, "add_zero_attn": True}, attn_mask=LOWER),
    "functional causal": functional(attn_mask=LOWER, is_causal=True, need_weights=False),
    "functional with masks of heads": functional(attn_mask=numbers(4, 7, 7), key_padding_mask=PADDING.double()),
}


def pooled(pool, x, *window):
    """The results of max pooling, and the arguments that put them back."""
    return *pool(x, *window, return_indices=True), *window


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

CASES = UNRECORDED | SHAPES | COMPLEX | ELEMENTS | PARTS | WRITTEN | SUMS | PRODUCTS | ATTENTION | LAYERS | RECURRENT


@pytest.mark.shared
@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")
@pytest.mark.parametrize("name", CASES)
def test_rule(name):
    function, shape = CASES[name]
    make = function if function.__name__ == "made" else lambda: Function(function)
    problems = []
    for split in splits(len(shape)):
        problems += off_when_split(make, numbers(*shape, seed=9), split)
    assert not any(together(problems)), problems


@pytest.mark.ranks(2)
@pytest.mark.drawn(30)
@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")
@pytest.mark.parametrize("name", CASES)
def test_nothing_grows(name):
    function, shape = CASES[name]
    P_x = grid(P_world, splits(len(shape))[-2])
    make = function if function.__name__ == "made" else lambda: Function(function)
    step(make(), numbers(*shape, seed=9))  # from now on its numbers are constants
    model = distdl.distribute(make(), P_x)
    x = distdl.scatter(numbers(*shape, seed=9), P_x).detach().requires_grad_()

    def forward_and_backward():
        x.grad = None
        model.zero_grad()
        _, loss = step(model, x)
        if any(together(loss is not None)):
            (x.sum() * 0 if loss is None else loss).backward()

    assert_stays(forward_and_backward, name)


WITHOUT_A_RULE = {"ctc_loss", "embedding_bag", "triplet_margin_with_distance_loss"}
"""Functions of torch.nn.functional that are refused by name."""
if TORCH >= (2, 10):
    WITHOUT_A_RULE |= {"scaled_grouped_mm", "scaled_mm"}
if TORCH >= (2, 13):
    WITHOUT_A_RULE |= {"linear_cross_entropy"}
OF_OTHERS = {"assert_int_or_pair", "boolean_dispatch", "upsample", "upsample_bilinear", "upsample_nearest"}
"""Functions that only call others."""


@pytest.mark.ranks(1)
def test_functions_of_torch_have_a_rule_or_are_known_to_have_none():
    modules = ("torch.nn.functional", "torch._jit_internal", "torch._C._nn", None)
    functions = {name for name in dir(F) if callable(getattr(F, name)) and name[0].islower()}
    functions = {name for name in functions if getattr(getattr(F, name), "__module__", None) in modules}
    assert {
        name for name in functions if key_of(getattr(F, name)) not in RULES.keys() | INLINED | DECOMPOSITIONS.keys()
    } - OF_OTHERS == WITHOUT_A_RULE
