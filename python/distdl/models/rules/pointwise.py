"""Operations that work on each element by itself, with broadcasting."""

from __future__ import annotations

from distdl.models.capture import Node
from distdl.models.operation import Operation
from distdl.models.table import broadcast, local, rule

_UNARY = (
    "Hardtanh", "ReLU", "ReLU6", "abs", "acos", "acosh", "alias", "angle", "asin", "asinh", "atan", "atanh",
    "bfloat16", "bitwise_not", "bool", "ceil", "celu", "clone", "conj", "contiguous", "cos", "cosh", "cpu", "data",
    "deg2rad", "detach", "digamma", "double", "elu", "erf", "erfc", "erfinv", "exp", "exp2", "expm1", "fill", "float",
    "floor", "frac", "full_like", "gelu", "half", "hardshrink", "hardsigmoid", "hardswish", "hardtanh", "i0", "imag",
    "int", "invert", "isfinite", "isinf", "isnan", "leaky_relu", "lgamma", "log", "log10", "log1p", "log2",
    "logical_not", "logit", "logsigmoid", "long", "mish", "nan_to_num", "neg", "ones_like", "pos", "positive",
    "rad2deg", "real", "reciprocal", "relu", "relu6", "round", "rsqrt", "selu", "sgn", "sigmoid", "sign", "signbit",
    "silu", "sin", "sinc", "sinh", "softplus", "softshrink", "softsign", "sqrt", "square", "tan", "tanh",
    "tanhshrink", "threshold", "to", "trunc", "type", "xlogy", "zero", "zeros_like",
)  # fmt: skip
_BROADCASTING = (
    "add", "addcdiv", "addcmul", "and", "atan2", "bitwise_and", "bitwise_or", "bitwise_xor", "clamp", "clamp_max",
    "clamp_min", "clip", "copysign", "copy", "div", "divide", "eq", "float_power", "floor_divide", "floordiv", "fmax",
    "fmin", "fmod", "ge", "greater", "greater_equal", "gt", "hypot", "ldexp", "le", "lerp", "less", "less_equal",
    "logaddexp", "logical_and", "logical_or", "logical_xor", "lt", "masked_fill", "maximum", "minimum", "mod", "mul",
    "multiply", "ne", "not_equal", "or", "pow", "rdiv", "remainder", "rfloordiv", "rpow", "rsub", "rtruediv", "sub",
    "subtract", "true_divide", "truediv", "type_as", "where", "xor",
)  # fmt: skip


@rule(*_UNARY, *_BROADCASTING)
def elementwise(node: Node) -> Operation:
    """Any dimension may be split."""
    shape = node.outputs[0].shape
    return local(node, [broadcast(one, shape) for one in node.inputs])
