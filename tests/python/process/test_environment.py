"""The environment variables that the package reads are those of the documentation."""

import re
from pathlib import Path

import pytest

import distdl

DOCUMENTATION = Path(__file__).parents[3] / "docs" / "environment_variables.rst"


@pytest.mark.ranks(1)
def test_all_variables_are_documented():
    folder = Path(distdl.__file__).parent
    files = [folder / "process" / "environment.py", folder / "classic" / "config.py"]
    read = {name for file in files for name in re.findall(r'"(DISTDL_[A-Z_]+)"', file.read_text())}
    running = DOCUMENTATION.read_text().partition("While the package is built")[0]
    assert len(read) > 8
    assert read == set(re.findall(r"``(DISTDL_[A-Z_]+)``", running))
