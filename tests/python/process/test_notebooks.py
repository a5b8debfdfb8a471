"""Cells that run on all ranks, and the page on notebooks, whose cells say what it shows."""

import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import distdl
from distdl import notebook
from support.jobs import OUTSIDE
from support.ranks import job

PAGE = Path(__file__).parents[3] / "docs" / "notebooks.rst"
RUN = """
import sys
from IPython.core.interactiveshell import InteractiveShell

shell = InteractiveShell.instance(colors="nocolor")
for cell in sys.argv[1:]:
    shell.run_cell(cell)
    print(chr(30), flush=True)
"""


class Events:
    """The events of an IPython, with the functions that are registered."""

    def __init__(self):
        self.functions = []

    def register(self, event, function):
        assert event == "post_run_cell"
        self.functions.append(function)

    def unregister(self, event, function):
        assert event == "post_run_cell"
        self.functions.remove(function)

    def run(self, cell):
        """What a cell raises."""
        error = None
        try:
            cell()
        except Exception as raised:
            error = raised
        for function in self.functions:
            function(SimpleNamespace(error_before_exec=None, error_in_exec=error))
        return error


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("failing", [0, -1])
def test_a_cell_that_raises_on_one_rank_raises_on_all_that_wait(P_world, failing):
    failing %= job.size
    shell = SimpleNamespace(events=Events())
    notebook.load_ipython_extension(shell)
    P_some = P_world.create_partition_inclusive([0, 1])
    layer, of_some = (distdl.nn.AllSumReduce(P, [0]) for P in (P_world, P_some))
    steps = []

    def cell(fails):
        for step in range(3):
            if fails and step == 1 and job.rank == failing:
                raise ValueError("on one rank only")
            layer(torch.ones(2))
            steps.append(step)

    def cell_of_some(fails):
        if fails and job.rank == failing:
            raise ValueError("on one rank only")
        if P_some.active:
            of_some(torch.ones(2))

    for _ in range(2):
        assert shell.events.run(lambda: cell(False)) is None
        error = shell.events.run(lambda: cell(True))
        assert isinstance(error, ValueError if job.rank == failing else RuntimeError)
        place = rf"rank {failing}: the end of a cell, which raised ValueError: on one rank only"
        assert job.rank == failing or re.search(rf"do not make the same call; .*{place}", str(error))
    assert steps == [0, 1, 2, 0] * 2
    error = shell.events.run(lambda: cell_of_some(True))
    assert isinstance(error, RuntimeError | ValueError) == (job.rank == failing or (P_some.active and failing < 2))
    assert shell.events.run(lambda: cell_of_some(False)) is None
    assert shell.events.run(lambda: cell(False)) is None
    notebook.unload_ipython_extension(shell)
    assert not shell.events.functions


def blocks_of(page):
    """The cells of a page, whose highlighting is forced, and the lines that it shows after each."""
    cells = []
    directive = r"^\.\. code-block:: (python\n   :force:|text)\n\n((?:   .*\n|\n)+)"
    for language, block in re.findall(directive, page, re.MULTILINE):
        lines = [line[3:] for line in block.rstrip().splitlines()]
        if language != "text":
            cells.append(("\n".join(lines), []))
        else:
            cells[-1][1].extend(line for line in lines if line != "...")
    return cells


@pytest.mark.ranks(1)
@pytest.mark.turns(3)  # which takes a minute
def test_the_cells_of_the_page_show_what_it_shows(tmp_path):
    cells = blocks_of(PAGE.read_text())
    command = [sys.executable, "-c", RUN, *(cell for cell, _ in cells)]
    environment = {**OUTSIDE, "OMP_NUM_THREADS": "1", "IPYTHONDIR": str(tmp_path), "TQDM_DISABLE": "1"}
    both = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    done = subprocess.run(command, env=environment, **both, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stdout[-3000:]
    outputs = done.stdout.split("\x1e\n")[:-1]
    for (cell, shown), output in zip(cells, outputs, strict=True):
        said = re.sub(r"\x1b\[[\d;]*m", "", output)
        for line in shown:
            pattern = ".*".join(map(re.escape, line.split("...")))
            assert re.search(rf"(?m)^(Out.*: )?{pattern}", said), f"{line}\nis not in\n{said}\nafter\n{cell}"
        if not shown:
            assert "Error" not in said, f"{said}\nafter\n{cell}"
