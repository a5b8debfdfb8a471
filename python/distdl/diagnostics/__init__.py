"""Find code of single-process programs that gives other numbers on blocks. No other folder imports this one."""

from distdl.diagnostics import first_call as first_call  # registers itself with the first calls of layers
