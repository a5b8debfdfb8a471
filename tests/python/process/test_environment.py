"""The page of environment variables has all that the sources read."""

import importlib.util
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[3] / "docs"


@pytest.mark.ranks(1)
def test_the_page_is_current():
    """`python docs/environment_variables.py` writes it."""
    spec = importlib.util.spec_from_file_location("environment_variables", DOCS / "environment_variables.py")
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    assert (DOCS / "environment_variables.rst").read_text() == program.text()
    assert "``DISTDL_WATCHDOG``" in program.text()
