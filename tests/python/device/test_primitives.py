"""Operators on a device: the bits of the CPU."""

import gc

import pytest
import torch

import distdl.nn as dnn
from distdl import memory
from support.blocks import grid
from support.cases import CASES, LARGE_CASES, Case
from support.ranks import job
from support.tensors import derivatives, same_bits, values

ALL_CASES = {**CASES, **LARGE_CASES}


def halves(layer):
    return lambda x: layer.wait(layer.start(x))


def on_the_cpu(case):
    """An input, a weight of the result, and the result with its derivatives."""
    x = values(case.shape, seed=job.rank)
    weight = values(case.operator(x).shape, seed=100 + job.rank)
    return x, weight, derivatives(case.operator, x, weight)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("make", ALL_CASES.values(), ids=ALL_CASES)
@pytest.mark.parametrize("started", [lambda layer: layer, halves], ids=["call", "halves"])
def test_bits_of_the_cpu(P_world, make, started, device):
    case = make(P_world)
    x, weight, expected = on_the_cpu(case)
    results = derivatives(started(case.operator), x.to(device), weight.to(device))
    assert all(y.device.type == device for y in results)
    assert all(same_bits(y.cpu(), z) for y, z in zip(results, expected, strict=True))


@pytest.mark.usefixtures("direct")
@pytest.mark.parametrize("make", ALL_CASES.values(), ids=ALL_CASES)
def test_one_rank_is_staged(P_world, make, device):
    """The others do not have to know."""
    case = make(P_world)
    x, weight, expected = on_the_cpu(case)
    if job.rank == 0:
        memory.set_device_memory("staged")
    results = derivatives(case.operator, x.to(device), weight.to(device))
    assert all(same_bits(y.cpu(), z) for y, z in zip(results, expected, strict=True))


def gather_to_first(P):
    """To a rank that has a block itself, and sends nothing, so that nothing makes it wait for its streams."""
    return Case(dnn.Repartition(grid(P, [P.size]), grid(P, [1])), (3,))


@pytest.mark.parametrize("make", [*ALL_CASES.values(), gather_to_first], ids=[*ALL_CASES, "gather_to_first"])
def test_memory_that_is_dropped_while_streams_use_it(P_world, make, device):
    """The input, before the result is waited for in another stream; and the result, after its use is queued."""
    case = make(P_world)
    x = values(case.shape, seed=job.rank)
    expected = case.operator(x)
    started = case.operator.start(x.to(device))
    with torch.Stream(device):
        y = case.operator.wait(started)
        del started
        used = y.clone()
        del y
        gc.collect()
        assert same_bits(used.cpu(), expected)


@pytest.mark.parametrize("make", LARGE_CASES.values(), ids=LARGE_CASES)
def test_one_rank_on_the_cpu(P_world, make, device):
    """All ranks cut their messages alike, though one has no need to."""
    case = make(P_world)
    x, weight, expected = on_the_cpu(case)
    own = "cpu" if job.rank == 0 else device
    results = derivatives(case.operator, x.to(own), weight.to(own))
    assert all(y.device.type == own for y in results)
    assert all(same_bits(y.cpu(), z) for y, z in zip(results, expected, strict=True))
