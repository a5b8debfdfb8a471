"""Run the programs of the documentation and compare their output with the NAME.txt files that the pages show.

`python docs/programs/check.py [NAME...]` prints the differences; with --write it writes the files anew. A line `...` in
a file stands for any lines. mpiexec must be on PATH. tests/python/process/test_programs_of_pages.py runs some of them.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

here = Path(__file__).parent
environment = {**os.environ, "OMP_NUM_THREADS": "1"}


def run(command: str) -> str:
    """The output of one line of a page, such as: mpiexec -n 2 python -m mpi4py first.py."""
    command, both, _ = command.partition(" 2>&1")
    words = [sys.executable if word == "python" else word for word in command.split()]
    done = subprocess.run(words, cwd=here, env=environment, capture_output=True, text=True, timeout=300)
    said = done.stdout + done.stderr if both or done.returncode else done.stdout
    said = re.sub(r"process \d+ on [^)]+", "process 4711 on node1", said)  # these differ from run to run
    return said if done.returncode == 0 else f"{said}(exit code {done.returncode})\n"


def fits(shown: str, expected: str) -> bool:
    any_lines = re.escape("\n...\n")
    return re.fullmatch(re.escape(expected).replace(any_lines, "\n(?:.*\n)*?"), shown) is not None


def main(*arguments: str) -> int:
    names = [name for name in arguments if name != "--write"] or sorted(page.stem for page in here.glob("*.txt"))
    failed = 0
    for name in names:
        page = here / f"{name}.txt"
        expected = page.read_text()
        commands = [line.removeprefix("$ ") for line in expected.splitlines() if line.startswith("$ ")]
        shown = "\n".join(f"$ {command}\n{run(command).strip()}\n" for command in commands)
        if fits(shown, expected):
            continue
        if "--write" in arguments:
            page.write_text(shown)
        else:
            failed = 1
            print(f"{page.name}: expected\n{expected}\nbut got\n{shown}")
    return failed


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
