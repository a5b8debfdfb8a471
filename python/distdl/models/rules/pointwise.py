"""Operations that work on each element by itself, with broadcasting."""

from __future__ import annotations

from distdl.models.operation import Along, NoRuleError, Operation, RandomError, Reads
from distdl.models.recording import Node
from distdl.models.table import argument, broadcast, local, rule, same

_UNARY = (
    "Hardtanh", "ReLU", "ReLU6", "abs", "acos", "acosh", "alias", "angle", "asin", "asinh", "atan", "atanh",
    "bfloat16", "bitwise_not", "bool", "ceil", "celu", "clone", "conj", "contiguous", "cos", "cosh", "cpu", "data",
    "deg2rad", "detach", "digamma", "double", "elu", "erf", "erfc", "erfinv", "exp", "exp2", "expm1", "fill", "float",
    "floor", "frac", "full_like", "gelu", "half", "hardshrink", "hardsigmoid", "hardswish", "hardtanh", "i0", "imag",
    "int", "invert", "isfinite", "isinf", "isnan", "leaky_relu", "lgamma", "log", "log10", "log1p", "log2",
    "logical_not", "logit", "logsigmoid", "long", "mish", "nan_to_num", "neg", "ones_like", "pos", "positive",
    "rad2deg", "real", "reciprocal", "relu", "relu6", "round", "rsqrt", "selu", "sgn", "sigmoid", "sign", "signbit",
    "silu", "sin", "sinc", "sinh", "softplus", "softshrink", "softsign", "sqrt", "square", "tan", "tanh",
    "tanhshrink", "threshold", "to", "trunc", "type", "xlogy", "zero", "zeros_like", "empty_like",
)  # fmt: skip
_BROADCASTING = (
    "add", "addcdiv", "addcmul", "and", "atan2", "bitwise_and", "bitwise_or", "bitwise_xor", "clamp", "clamp_max",
    "clamp_min", "clip", "copysign", "copy", "div", "divide", "eq", "float_power", "floor_divide", "floordiv", "fmax",
    "fmin", "fmod", "ge", "greater", "greater_equal", "gt", "hypot", "ldexp", "le", "lerp", "less", "less_equal",
    "logaddexp", "logical_and", "logical_or", "logical_xor", "lt", "masked_fill", "maximum", "minimum", "mod", "mul",
    "multiply", "ne", "not_equal", "or", "pow", "rdiv", "remainder", "rfloordiv", "rpow", "rsub", "rtruediv", "sub",
    "subtract", "true_divide", "truediv", "where", "xor",
)  # fmt: skip


@rule("prelu")
def prelu(node: Node) -> Operation:
    """Any dimension; the slopes belong to channels, which follow the batch."""
    x, slopes = node.inputs
    shape = x.shape
    channels: Reads = tuple(Along(1) if n != 1 else None for n in slopes.shape)
    return local(node, [same(len(shape)), channels])


@rule("rrelu")
def rrelu(node: Node) -> Operation:
    """In evaluation any dimension."""
    if argument(node, 3, "training", False):
        raise RandomError("rrelu in training draws slopes by the sign of the input; use leaky_relu or prelu")
    return elementwise(node)


@rule("one_hot")
def one_hot(node: Node) -> Operation:
    """Anything but classes."""
    n = len(node.outputs[0].shape)
    return local(node, [same(n - 1)], [n - 1])


@rule("cosine_similarity", "pairwise_distance")
def pairwise(node: Node) -> Operation:
    """Anything but features."""
    a, b = node.inputs
    n = len(a.shape)
    if a.shape != b.shape:
        raise NoRuleError(f"{node.key} of tensors of different shapes")
    dim = n - 1 if node.key == "pairwise_distance" else argument(node, 2, "dim", 1) % n
    keeps = len(node.outputs[0].shape) == n
    reads = [tuple(None if d == dim else Along(d - (d > dim and not keeps)) for d in range(n))] * 2
    return local(node, reads, [dim] if keeps else [])


@rule(*_UNARY, *_BROADCASTING)
def elementwise(node: Node) -> Operation:
    """Any dimension may be split."""
    shape = node.outputs[0].shape
    return local(node, [broadcast(one, shape) for one in node.inputs])
