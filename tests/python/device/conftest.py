"""Tests on a device whose work comes late, in jobs of their own, with DISTDL_TEST_DEVICE=1: see tests/commands.sh."""

import os

import pytest

collect_ignore_glob = [] if os.environ.get("DISTDL_TEST_DEVICE") == "1" else ["*"]


@pytest.fixture(scope="session")
def lagging():
    """The module of the device."""
    from support.lagging import load

    return load()


@pytest.fixture(params=["late", "others first"], autouse=True)
def schedule(request, lagging):
    """Streams run as late as they may, or before those that are waited for: what is missing shows in one of them."""
    lagging.synchronize()
    lagging.set_late(request.param == "late")
    yield
    lagging.synchronize()
