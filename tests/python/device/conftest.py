"""Tests on a device, in jobs of their own: DISTDL_TEST_DEVICE names it.

``lagging`` is a device whose work comes late (tests/device; see tests/commands.sh), ``cuda`` the GPU of tests/gpu.sh.
"""

import os

import pytest

import distdl
from distdl import memory

DEVICE = os.environ.get("DISTDL_TEST_DEVICE", "")
LAGGING = "lagging"
collect_ignore_glob = ["*"] if not DEVICE else [] if DEVICE == LAGGING else ["test_late_work.py"]


@pytest.fixture(scope="session")
def lagging():
    """The module of the device whose work comes late."""
    from support.lagging import load

    return load()


@pytest.fixture(scope="session")
def device():
    """The name of the device; on a machine with several, each rank has its own."""
    if DEVICE != LAGGING:
        assert distdl.local_device().type == DEVICE
    return DEVICE


@pytest.fixture(params=["late", "others first"] if DEVICE == LAGGING else [DEVICE], autouse=True)
def schedule(request):
    """Streams run as late as they may, or before those that are waited for: what is missing shows in one of them."""
    if DEVICE != LAGGING:
        yield
        return
    lagging = request.getfixturevalue("lagging")
    lagging.synchronize()
    lagging.set_late(request.param == "late")
    yield
    lagging.synchronize()


@pytest.fixture
def direct(request, monkeypatch):
    """Messages that MPI sends and receives itself, with a library that lists the device among its kinds of memory."""
    if DEVICE == LAGGING:
        monkeypatch.setattr(memory, "kinds_of_memory", lambda: f"mpi,system,{LAGGING}")
        lagging = request.getfixturevalue("lagging")
        lagging.open_memory(True)
    elif not memory.takes_devices():
        pytest.skip("this MPI library takes no memory of devices")
    memory.set_device_memory("direct")
    yield
    memory.set_device_memory("staged")
    if DEVICE == LAGGING:
        lagging.synchronize()
        lagging.open_memory(False)


@pytest.fixture(params=["staged", "direct"])
def way(request):
    """How messages of devices travel."""
    if request.param == "direct":
        request.getfixturevalue("direct")
    return request.param
