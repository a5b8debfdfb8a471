"""The table of operations that can be computed in blocks, one module a family.

A rule looks at a recorded call and says what each worker reads for its block of the result: see
:class:`distdl.models.operations.operation.Operation`.
"""

from distdl.models.operations.table import RULES
from distdl.models.rules import (
    attention,
    constants,
    drawing,
    indexing,
    layers,
    matrices,
    pointwise,
    recurrent,
    reductions,
    sampling,
    shapes,
    spectra,
)

__all__ = [
    "RULES",
    "attention",
    "constants",
    "drawing",
    "indexing",
    "layers",
    "matrices",
    "pointwise",
    "recurrent",
    "reductions",
    "sampling",
    "shapes",
    "spectra",
]
