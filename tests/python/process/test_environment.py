"""The environment variables: their page has all that the sources read, and values are checked."""

import pytest

from distdl.process import environment
from support.programs import ROOT, load_program


@pytest.mark.ranks(1)
def test_the_page_is_current():
    """`python docs/environment_variables.py` writes it."""
    program = load_program("docs/environment_variables")
    assert (ROOT / "docs" / "environment_variables.rst").read_text() == program.text()
    assert "``DISTDL_WATCHDOG``" in program.text()


@pytest.mark.ranks(1)
@pytest.mark.parametrize("name", ["DEBUG", "PROGRESS_BARS", "PROGRESS_THREAD", "WATCHDOG_END"])
@pytest.mark.parametrize("value", ["true", "no"])
def test_a_switch_takes_0_or_1(monkeypatch, name, value):
    monkeypatch.setenv(f"DISTDL_{name}", value)
    try:
        with pytest.raises(ValueError, match=f"DISTDL_{name}='{value}'; it must be 0 or 1"):
            environment.apply()
    finally:
        monkeypatch.undo()
        environment.apply()
