"""Cases of the rules of operations, by family: a function or a maker of a layer, and the shape of its input."""

from support.rules.attention import ATTENTION
from support.rules.composed import COMPOSED
from support.rules.elements import ELEMENTS
from support.rules.layers import LAYERS, RECURRENT
from support.rules.parts import PARTS, UNRECORDED, WRITTEN
from support.rules.products import PRODUCTS
from support.rules.shapes import SHAPES
from support.rules.spectra import COMPLEX
from support.rules.sums import SUMS

CASES = (
    UNRECORDED
    | SHAPES
    | COMPLEX
    | ELEMENTS
    | PARTS
    | WRITTEN
    | SUMS
    | PRODUCTS
    | COMPOSED
    | ATTENTION
    | LAYERS
    | RECURRENT
)
