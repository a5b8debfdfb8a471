"""The page of environment variables has all that the sources read."""

import pytest

from support.programs import ROOT, load_program


@pytest.mark.ranks(1)
def test_the_page_is_current():
    """`python docs/environment_variables.py` writes it."""
    program = load_program("docs/environment_variables")
    assert (ROOT / "docs" / "environment_variables.rst").read_text() == program.text()
    assert "``DISTDL_WATCHDOG``" in program.text()
