"""distdl.local_device(), for machines whose devices are pretended."""

import pytest
import torch

import distdl
from distdl.process.devices import _LOCAL_RANKS
from support.ranks import job


@pytest.fixture
def chosen(monkeypatch):
    """The devices that became current ones on a machine of three, where no launcher tells a number."""
    devices = []
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available: torch.device("cuda"))
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 3)
    monkeypatch.setattr(torch.accelerator, "set_device_index", devices.append)
    for name in _LOCAL_RANKS:
        monkeypatch.delenv(name, raising=False)
    return devices


@pytest.mark.ranks(1)
def test_without_an_accelerator_it_is_the_cpu(monkeypatch):
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available: None)
    assert distdl.local_device() == torch.device("cpu")


@pytest.mark.ranks(1)
@pytest.mark.parametrize("name", _LOCAL_RANKS)
def test_ranks_take_the_devices_in_turn(monkeypatch, chosen, name):
    for number in range(7):
        monkeypatch.setenv(name, str(number))
        assert distdl.local_device() == torch.device("cuda", number % 3)
    assert chosen == [torch.device("cuda", number % 3) for number in range(7)]


@pytest.mark.ranks(1)
def test_a_job_of_slurm_in_which_another_launcher_starts_the_ranks(monkeypatch, chosen):
    monkeypatch.setenv("SLURM_LOCALID", "0")
    monkeypatch.setenv("OMPI_COMM_WORLD_LOCAL_RANK", "2")
    assert distdl.local_device() == torch.device("cuda", 2)


def test_without_numbers_of_a_launcher(chosen):
    device = torch.device("cuda", job.rank % 3)
    assert distdl.local_device() == device
    assert chosen == [device]
