"""What tests of distributed models share."""

import pytest

from distdl import _core
from distdl.process.environment import ranks_on_each_host
from support.ranks import job


@pytest.fixture
def comm(request):
    """A communicator with so many ranks on each host, as far as they know."""
    _core.set_hosts(request.param)
    made = job.Dup()
    yield made
    made.Free()
    _core.set_hosts(ranks_on_each_host())
