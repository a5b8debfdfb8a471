"""Classic mode: programs written for DistDL run unchanged. Importing this package turns it on.

There are three ways: ``mpiexec -n P python -m distdl.classic program.py``, ``import distdl.classic`` as the first line
of a program, and ``-p distdl.classic`` for pytest. Then the argument orders, defaults, attributes and keys of the
original DistDL and of its descendant hold under their names. Every rank has to turn the mode on, before it makes
partitions or layers.

Without classic mode all import paths are there as well, and our names keep our meaning.
"""

from distdl.classic.activation import turn_on

turn_on()
