"""Tensors that are exact in every dtype, and how they are compared."""

import torch

from support.ranks import job, total

# All dtypes that torch can fill from integers.
REAL = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
COMPLEX = (torch.complex32, torch.complex64, torch.complex128)
INTEGRAL = (
    torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.int8, torch.int16, torch.int32, torch.int64,
)  # fmt: skip
FLOAT8 = (
    torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.float8_e8m0fnu,
)  # fmt: skip
ALL_DTYPES = (*REAL, *COMPLEX, *INTEGRAL, torch.bool, *FLOAT8)


def inner(a, b):
    """<a, b> summed over all ranks, and the sum of the magnitudes of its terms."""
    terms = (a.detach().conj() * b.detach()).to(torch.complex128).reshape(-1)
    return total(complex(terms.sum())), total(float(terms.abs().sum()))


def assert_adjoint(operator, x, y, tolerance=1e-13):
    """<A x, y> == <x, A* y>, relative to the magnitude of the terms; on all ranks."""
    ax = operator(x)
    aty = operator.adjoint(x, y)
    assert ax.shape == y.shape
    assert aty.shape == x.shape
    left, scale = inner(ax, y)
    right, other_scale = inner(x, aty)
    assert abs(left - right) <= tolerance * max(scale, other_scale), (left, right)


def values(shape, dtype=torch.float64, seed=0, differ_by_rank=False):
    """A tensor of integers small enough to be exact in every dtype; the same on all ranks unless they are to differ."""
    generator = torch.Generator().manual_seed(seed + (1000 * (job.rank + 1) if differ_by_rank else 0))
    high = 2 if dtype in (torch.bool, torch.float8_e8m0fnu) else 4
    low = 1 if dtype == torch.float8_e8m0fnu else 0
    whole = torch.randint(low, max(high, low + 1), tuple(shape), generator=generator)
    if dtype.is_complex:
        imaginary = torch.randint(0, 4, tuple(shape), generator=generator)
        return torch.complex(whole.double(), imaginary.double()).to(dtype)
    return whole.to(dtype)


def same_bits(a, b):
    """Equality of every bit, for any dtype."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if a.numel() == 0:
        return True
    # Copied, since a single element counts as contiguous in any strides, but cannot be viewed as bytes in all of them.
    plain = [t.detach().resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format) for t in (a, b)]
    flat = [t.reshape(-1).view(torch.uint8) for t in plain]
    return torch.equal(*flat)


def fill_with_integers(module):
    """Give a module's parameters values with which sums and products are exact in floating point."""
    with torch.no_grad():
        for i, parameter in enumerate(module.parameters()):
            parameter.copy_(values(parameter.shape, parameter.dtype, seed=100 + i))
    return module


def derivatives(function, x, weight):
    """The result, and the first and second derivatives of a function of it that is not linear."""
    x = x.clone().requires_grad_()
    y = function(x)
    (first,) = torch.autograd.grad((y.square() * weight.reshape(y.shape)).sum(), x, create_graph=True)
    return y, first, *torch.autograd.grad(first.square().sum(), x)
