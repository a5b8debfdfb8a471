"""Messages through memory of the host: the same bits. The CPU stands in for a device."""

import pytest
import torch

from distdl import memory
from support.cases import CASES
from support.ranks import job
from support.tensors import ALL_DTYPES, same_bits, values


@pytest.fixture
def _staged():
    before = memory.staging()
    memory.set_staging("always")
    yield
    memory.set_staging(before)


def derivatives(case, x, weight):
    x = x.clone().requires_grad_()
    y = case.operator.wait(case.operator.start(x))
    (first,) = torch.autograd.grad((y.square() * weight.reshape(y.shape)).sum(), x, create_graph=True)
    return y, first, *torch.autograd.grad(first.square().sum(), x)


@pytest.mark.usefixtures("_staged")
@pytest.mark.parametrize("make", CASES.values(), ids=CASES)
def test_staged(P_world, make):
    case = make(P_world)
    x = values(case.shape, seed=job.rank)
    memory.set_staging("where needed")
    at_once = case.operator(x)
    weight = values(at_once.shape, seed=100 + job.rank)
    expected = derivatives(case, x, weight)
    memory.set_staging("always")
    before = x.clone()
    assert same_bits(case.operator(x), at_once)
    assert all(same_bits(a, b) for a, b in zip(derivatives(case, x, weight), expected, strict=True))
    assert same_bits(x, before)


@pytest.mark.shared
@pytest.mark.usefixtures("_staged")
@pytest.mark.parametrize("make", CASES.values(), ids=CASES)
@pytest.mark.parametrize("dtype", [dtype for dtype in ALL_DTYPES if dtype.itemsize in (1, 2, 16)])
def test_staged_dtypes_and_strides(P_world, make, dtype):
    case = make(P_world)
    sums = any(name in type(case.operator).__name__ for name in ("Sum", "Reduce"))
    if sums and dtype.itemsize == 1 and dtype.is_floating_point:
        dtype = torch.bool
    wide = values((*case.shape, 2), dtype, seed=job.rank)
    x = wide[..., 0].conj() if dtype.is_complex else wide[..., 0]
    staged = case.operator(x)
    memory.set_staging("where needed")
    assert same_bits(staged, case.operator(x.resolve_conj().contiguous()))


@pytest.mark.parametrize(("kinds", "accelerator", "takes"), [
    ("mpi,system", None, False), ("system,mpi:win_allocate", None, False), ("mpi,system,cuda:device", None, True),
    ("", "cuda", True), ("mpi,system,cuda:device", "cuda", True), ("mpi,system,rocm", "cuda", False),
    ("system,level_zero", "xpu", True), ("system,cuda", "xpu", False),
])  # fmt: skip
def test_only_a_library_that_takes_memory_of_the_device_gets_it(monkeypatch, kinds, accelerator, takes):
    assert memory.device_memory() == "staged"
    device = accelerator and torch.device(accelerator)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: device)
    monkeypatch.setattr(memory, "kinds_of_memory", lambda: kinds)
    if not takes:
        with pytest.raises(ValueError, match="of the kinds"):
            memory.set_device_memory("direct")
        return
    memory.set_device_memory("direct")
    assert memory.device_memory() == "direct"
    memory.set_device_memory("staged")


def test_settings():
    assert memory.staging() == "where needed"
    with pytest.raises(ValueError, match="when='sometimes'"):
        memory.set_staging("sometimes")
