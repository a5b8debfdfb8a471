"""Tensors whose elements do not lie one after the other in memory, or lie there conjugated, negated or not at all."""

import torch


def everyday(x):
    return x


def transposed(x):
    backwards = tuple(range(x.dim()))[::-1]
    return x.permute(backwards).contiguous().permute(backwards)


def every_other(x):
    return x.new_empty([*x.shape, 2])[..., 1].copy_(x)


def within_a_larger_one(x):
    larger = x.new_empty([n + 3 for n in x.shape])
    for d, n in enumerate(x.shape):
        larger = larger.narrow(d, 2, n)
    return larger.copy_(x)


def expanded(x):
    """One column, everywhere."""
    return x[..., :1].expand(x.shape) if x.numel() and x.dim() else x


def channels_last(x):
    order = {4: torch.channels_last, 5: torch.channels_last_3d}.get(x.dim())
    return transposed(x) if order is None else x.contiguous(memory_format=order)


def conjugated(x):
    return x.conj().resolve_conj().conj()


def negated(x):
    if x.is_complex():
        x = x + (1 + 1j)  # torch negates a complex zero to either zero, by its place in memory
    return torch._neg_view(-x)


def zeros(x):
    """Without memory, as torch makes them for derivatives."""
    return torch._efficientzerotensor(x.shape, dtype=x.dtype)


PLAIN = (everyday, transposed, every_other, within_a_larger_one, expanded, channels_last)
STRIDES = (*PLAIN, conjugated, negated, zeros)  # the last of dtypes that have derivatives
