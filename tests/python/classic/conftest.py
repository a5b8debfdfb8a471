"""Tests of classic mode turn it on, and off again behind themselves."""

import pytest
from mpi4py import MPI

import distdl


@pytest.fixture
def classic():
    from distdl.process import legacy_paths

    activation = legacy_paths.module("activation")
    activation.turn_on()
    yield
    activation.turn_off()


@pytest.fixture
def P_world(classic):
    """The partition of all ranks of the job, as programs written for DistDL make it."""
    return distdl.backend.backend.Partition(MPI.COMM_WORLD)
