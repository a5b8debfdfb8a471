"""The table of operations that can be computed in blocks, one module a family.

A rule looks at a recorded call and says which part of the inputs each worker reads for its block of the result: see
:class:`distdl.models.operations.operation.Operation`. Its docstring names the dimensions that may be split.
"""

# Each module registers its rules.
from distdl.models.operations.table import RULES

from distdl.models.rules import along_dims, assignments, attention, checks, constants, drawing  # noqa: F401  isort: skip
from distdl.models.rules import gathering, grouped, indexing, joining, matrices, norms, pointwise  # noqa: F401  isort: skip
from distdl.models.rules import recurrent, reductions, sampling, shapes, spectra, unpacking, windows  # noqa: F401  isort: skip

__all__ = ["RULES"]
