"""``python -m distdl.classic program.py args``: run a program in classic mode. An uncaught exception ends the job."""

from mpi4py import run

import distdl.classic  # noqa: F401  (turns the mode on)

if __name__ == "__main__":
    run.main()
