"""The functions of torch that work on each element by itself."""

_UNARY = (
    "Hardtanh", "ReLU", "ReLU6", "_threshold", "abs", "absolute", "acos", "acosh", "alias", "angle", "arccos",
    "arccosh", "arcsin", "arcsinh", "arctan", "arctanh", "asin", "asinh", "atan", "atanh", "bfloat16", "bitwise_not",
    "bool", "byte", "cdouble", "ceil", "celu", "cfloat", "chalf", "char", "clone", "conj", "conj_physical",
    "contiguous", "cos", "cosh", "cpu", "data", "deg2rad", "detach", "digamma", "double", "elu", "empty_like", "erf",
    "erfc", "erfinv", "exp", "exp2", "expm1", "fill", "fix", "float", "floor", "frac", "frexp", "full_like", "gelu",
    "half", "hardshrink", "hardsigmoid", "hardswish", "hardtanh", "i0", "imag", "int", "invert", "isfinite", "isinf",
    "isnan", "isneginf", "isposinf", "isreal", "leaky_relu", "lgamma", "log", "log10", "log1p", "log2", "logical_not",
    "log_sigmoid", "logit", "long", "mish", "mvlgamma", "nan_to_num", "neg", "negative", "ones_like", "polygamma",
    "pos", "positive", "rad2deg", "real", "reciprocal", "relu", "relu6", "resolve_conj", "resolve_neg", "round",
    "rsqrt", "selu", "sgn", "short", "sigmoid", "sign", "signbit", "silu", "sin", "sinc", "sinh", "softplus",
    "softshrink", "softsign", "sqrt", "square", "tan", "tanh", "tanhshrink", "threshold", "to", "trunc", "type",
    "xlogy", "zero", "zeros_like", "fake_quantize_per_tensor_affine",
)  # fmt: skip
_BROADCASTING = (
    "add", "addcdiv", "addcmul", "and", "arctan2", "atan2", "bitwise_and", "bitwise_left_shift", "bitwise_or",
    "bitwise_right_shift", "bitwise_xor", "clamp", "clamp_max", "clamp_min", "clip", "complex", "copy", "copysign",
    "div", "divide", "eq", "float_power", "floor_divide", "floordiv", "fmax", "fmin", "fmod", "gcd", "ge", "greater",
    "greater_equal", "gt", "heaviside", "hypot", "igamma", "igammac", "isclose", "lcm", "ldexp", "le", "lerp", "less",
    "less_equal", "logaddexp", "logaddexp2", "logical_and", "logical_or", "logical_xor", "lshift", "lt", "masked_fill",
    "maximum", "minimum", "mod", "mul", "multiply", "ne", "nextafter", "not_equal", "or", "polar", "pow", "rdiv",
    "remainder", "rfloordiv", "rmod", "rpow", "rshift", "rsub", "rtruediv", "sub", "subtract", "true_divide",
    "truediv", "where", "with_values", "xor",
)  # fmt: skip
_SPECIAL = (
    "airy_ai", "bessel_j0", "bessel_j1", "bessel_y0", "bessel_y1", "chebyshev_polynomial_t", "chebyshev_polynomial_u",
    "chebyshev_polynomial_v", "chebyshev_polynomial_w", "digamma", "entr", "erf", "erfc", "erfcx", "erfinv", "exp2",
    "expit", "expm1", "gammainc", "gammaincc", "gammaln", "hermite_polynomial_h", "hermite_polynomial_he", "i0", "i0e",
    "i1", "i1e", "laguerre_polynomial_l", "legendre_polynomial_p", "log1p", "log_ndtr", "logit", "modified_bessel_i0",
    "modified_bessel_i1", "modified_bessel_k0", "modified_bessel_k1", "multigammaln", "ndtr", "ndtri", "polygamma",
    "psi", "round", "scaled_modified_bessel_k0", "scaled_modified_bessel_k1", "shifted_chebyshev_polynomial_t",
    "shifted_chebyshev_polynomial_u", "shifted_chebyshev_polynomial_v", "shifted_chebyshev_polynomial_w", "sinc",
    "spherical_bessel_j0", "xlog1py", "xlogy", "zeta",
)  # fmt: skip
ELEMENTWISE = frozenset((*_UNARY, *_BROADCASTING, *(f"special_{name}" for name in _SPECIAL)))
"""The names of all functions that work on each element by itself."""

MASKING = ELEMENTWISE | {
    "all", "any", "expand", "flatten", "getitem", "permute", "reshape", "select", "squeeze", "transpose", "unsqueeze",
    "view",
}  # fmt: skip
"""Functions that make masks, the same mask for the same arguments."""
