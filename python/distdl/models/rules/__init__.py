"""The table of operations that can be computed in blocks, one module a family.

A rule looks at a recorded call and says which part of the inputs each worker reads for its block of the result: see
:class:`distdl.models.operations.operation.Operation`.
"""

from distdl.models.operations.table import RULES
from distdl.models.rules import (  # noqa: F401  (each registers its rules)
    along_dims,
    assignments,
    attention,
    constants,
    drawing,
    gathering,
    indexing,
    joining,
    matrices,
    norms,
    patches,
    pointwise,
    recurrent,
    reductions,
    sampling,
    shapes,
    spectra,
    windows,
)

__all__ = ["RULES"]
