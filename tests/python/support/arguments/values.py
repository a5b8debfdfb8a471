"""Values of the arguments of torch's functions: by function, by name, and by type."""

import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from support.arguments.signatures import REQUIRED, Argument, Signature
from support.splitting import numbers

Of = Callable[[torch.Tensor], Any]


@dataclass(frozen=True)
class Together:
    """A value of an argument that counts, or fits, only beside values of others."""

    value: Any
    others: dict[str, Any]


def together(value: Any, /, **others: Any) -> Together:
    """A value with others."""
    return Together(value, others)


def like(x: torch.Tensor) -> torch.Tensor:
    """Other numbers of the same shape."""
    return numbers(*x.shape, seed=3)


def spectra(x: torch.Tensor, **options: Any) -> torch.Tensor:
    """Half of the spectra of frames of four numbers."""
    return torch.stft(x, 4, window=torch.hann_window(4).double(), return_complex=True, **options)


def two_sided_spectra(x: torch.Tensor) -> torch.Tensor:
    """The whole spectra."""
    return spectra(x, onesided=False)


def signs(x: torch.Tensor) -> torch.Tensor:
    """Numbers that are 1 or -1."""
    return like(x).sign()


def weights(x: torch.Tensor) -> torch.Tensor:
    """Positive numbers."""
    return like(x).exp()


def probabilities(x: torch.Tensor) -> torch.Tensor:
    """Numbers between 0 and 1."""
    return like(x).sigmoid()


def integers(x: torch.Tensor) -> torch.Tensor:
    """Small numbers without a fraction, above 0."""
    return (like(x) * 3).abs().int() + 1


def definite(x: torch.Tensor) -> torch.Tensor:
    """Matrices that are symmetric and positive definite."""
    return x @ x.mT + torch.eye(x.shape[-1], dtype=x.dtype)


def places(n: int, *shape: int) -> torch.Tensor:
    """Numbers below n."""
    return (numbers(*shape, seed=4).abs() * 7).long() % n


IMAGE, VOLUME, LINE, MATRIX, ROWS = (2, 4, 6, 5), (1, 2, 4, 3, 6), (2, 4, 9), (5, 6), (4, 6, 5)
SPACES = {"1d": LINE, "2d": IMAGE, "3d": VOLUME}

LEFT_OUT = {
    "_random_samples", "_stacklevel", "batch_sizes", "device", "driver", "implicit", "layout", "names", "out",
    "out_dtype", "output_ratio", "pin_memory", "pivot",
}  # fmt: skip
"""Arguments that say nothing of values, or of which processors take the default alone."""

BY_NAME: dict[str, Any] = {
    "align_corners": True, "alpha": 0.7, "approximate": "tanh", "base": 3.0, "beta": 0.6, "bias": None,
        "ceil_mode": True,
    "correction": 2, "dilation": 2, "dtype": torch.float32, "eps": 0.3, "groups": 2, "interpolation": "lower",
    "k": 2, "lambd": 0.3, "margin": 0.4, "mode": None, "momentum": 0.3, "norm": "ortho", "padding": 1, "p": 3.0,
    "memory_format": torch.channels_last, "generator": lambda x: torch.Generator().manual_seed(5), "training": True,
    "rounding_mode": "floor", "stride": 1, "value": 0.7, "UPLO": "U", "side": "right", "n": 2, "offset": 1,
        "diagonal": 1,
    "reduction": "sum", "size_average": False, "reduce": False, "inplace": True, "other": like, "target": like,
    "kernel_size": 2, "norm_type": 3.0, "size": (2, 3), "tensors": lambda x: [x, x.sin()], "return_indices": True,
}  # fmt: skip
"""Values that most functions take by the name of an argument; None: there is no such value."""

_BY_KIND: dict[str, Any] = {
    "Tensor": like, "List[Tensor]": lambda x: [x, x.sin()], "number": 0.7, "float": 0.7, "int": 1, "List[int]": [1],
    "ScalarType": torch.float32, "MemoryFormat": torch.channels_last, "Generator": BY_NAME["generator"],
}  # fmt: skip


def value_of(signature: Signature, argument: Argument) -> Any:
    """The value with which an argument is called, if not with its default; None where torch takes no other.

    Raises:
        KeyError: if the table has none.
    """
    own = entry(signature)
    if argument.name in own:
        return own[argument.name]
    if argument.name == "dim":
        return _a_dimension(argument)
    if argument.name == "reduction" and argument.kind == "int":
        return 2
    if BY_NAME.get(argument.name) is not None:
        return BY_NAME[argument.name]
    if isinstance(argument.default, bool) or argument.kind in ("bool", "Optional[bool]"):
        return not argument.default if isinstance(argument.default, bool) else True
    if argument.default is None and argument.kind == "":
        raise KeyError(f"{signature.name} has an argument {argument.name} without a value in the table")
    kind = argument.kind.removeprefix("Optional[").removesuffix("]") if "Optional[" in argument.kind else argument.kind
    if kind not in _BY_KIND:
        raise KeyError(f"{signature.name} has an argument {argument.name} ({kind}) without a value in the table")
    return _BY_KIND[kind]


def _a_dimension(argument: Argument) -> Any:
    if "List" in argument.kind:
        return [1] if argument.default is REQUIRED or argument.default is None else [0]
    return 0 if argument.default in (1, -2) else 1


def entry(signature: Signature) -> dict[str, Any]:
    """The entry of the table for a function or an overload."""
    plain, _, _ = signature.name.partition(".")
    own = f"F.{plain}" if isinstance(signature.function, types.FunctionType) else signature.name
    return OF.get(plain, {}) | OF.get(own, {})


def _spaces(name: str, **own: Any) -> dict[str, dict[str, Any]]:
    return {name + dims: {"SHAPE": shape} | own for dims, shape in SPACES.items()}


def _pools(name: str) -> dict[str, dict[str, Any]]:
    own = {"count_include_pad": together(False, padding=1), "dilation": together(2, stride=1)}
    return _spaces(name, **own) | _spaces_with(name, "_with_indices", own)


def _spaces_with(name: str, behind: str, own: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {f"{name}{dims}{behind}": {"SHAPE": shape} | own for dims, shape in SPACES.items()}


def _convolutions() -> dict[str, dict[str, Any]]:
    table = {}
    for i, (dims, shape) in enumerate(SPACES.items(), 1):
        channels, kernel = shape[1], [3] * i
        own = {"SHAPE": shape, "bias": numbers(6, seed=5)}
        table[f"conv{dims}"] = own | {
            "weight": numbers(6, channels, *kernel),
            "groups": together(2, weight=numbers(6, channels // 2, *kernel)),
        }
        if i == 3:
            table["conv3d"] |= {"dilation": together(2, padding=2)}
        table[f"conv{dims}.padding"] = {"padding": "same"}
        table[f"conv_transpose{dims}"] = own | {
            "weight": numbers(channels, 6, *kernel),
            "stride": 2,
            "groups": together(2, weight=numbers(channels, 3, *kernel)),
            "output_padding": together(1, stride=2),
        }
    return table


def _pooled(x: torch.Tensor, dims: str) -> tuple[torch.Tensor, torch.Tensor]:
    pooled: tuple[torch.Tensor, torch.Tensor] = getattr(F, f"max_pool{dims}")(x, 2, return_indices=True)
    return pooled


def _unpools() -> dict[str, dict[str, Any]]:
    table = {}
    for i, (dims, shape) in enumerate(SPACES.items(), 1):
        pooled = tuple(n // 2 for n in shape[2:])
        table[f"max_unpool{dims}"] = {
            "SHAPE": shape, "FIRST": lambda x, dims=dims: _pooled(x, dims)[0], "stride": [3] * i,
            "indices": lambda x, dims=dims: _pooled(x, dims)[1],
            "padding": together(1, output_size=[2 * n - 1 for n in pooled], indices=lambda x,
                dims=dims: 0 * _pooled(x, dims)[1]),
            "output_size": [2 * n + 1 for n in pooled],
        }  # fmt: skip
    return table


def _of_mask(x: torch.Tensor) -> torch.Tensor:
    return x > 0


def _states(gates: int) -> dict[str, Any]:
    return {"SHAPE": (5, 8), "hx": numbers(5, 3), "w_ih": numbers(3 * gates, 8), "w_hh": numbers(3 * gates, 3),
            "b_ih": together(numbers(3 * gates), b_hh=numbers(3 * gates)),
            "b_hh": together(numbers(3 * gates), b_ih=numbers(3 * gates))}  # fmt: skip


def _recurrent(gates: int) -> dict[str, Any]:
    params = [numbers(3 * gates, 8), numbers(3 * gates, 3), numbers(3 * gates), numbers(3 * gates)]
    return {"SHAPE": (7, 2, 8), "hx": numbers(1, 2, 3), "params": params, "has_biases": True, "num_layers": 1,
            "dropout": 0.0, "train": False, "bidirectional": False, "batch_first": False}  # fmt: skip


_INTEGERS = {"FIRST": integers, "other": integers}
_POSITIVE = {"FIRST": torch.exp}
_DEFINITE = {"SHAPE": (4, 3, 3), "FIRST": definite}
_MATRICES = {"SHAPE": (4, 3, 3)}
_SAMPLES = {"SHAPE": MATRIX, "target": places(6, 5), "weight": numbers(6, seed=5).exp()}
_CLASSES = {"SHAPE": (4, 3, 5), "target": places(3, 4, 5), "weight": numbers(3, seed=5).exp(), "ignore_index": 1,
            "label_smoothing": 0.2}  # fmt: skip
_NORMED = {"SHAPE": IMAGE, "weight": numbers(4, seed=5), "bias": numbers(4, seed=6), "running_mean": numbers(4, seed=7),
           "running_var": numbers(4, seed=8).exp()}  # fmt: skip
_FOURIER = {"n": 7, "s": [4, 3], "dim": 0}
_WIDER = together(torch.float64, FIRST=lambda x: x.float())
_WINDOW = {"window_length": 7, "periodic": False, "alpha": 0.3, "beta": 3.0}

OF: dict[str, dict[str, Any]] = (
    dict.fromkeys(("and", "bitwise_and", "bitwise_left_shift", "bitwise_or", "bitwise_right_shift", "bitwise_xor",
        "bitwise_not", "gcd", "lcm", "__and__", "__or__", "__xor__"), _INTEGERS)
    | {f"{name}.{kind}": {"FIRST": integers, "other": 2, "self": 2 if kind.startswith("Scalar_") else integers}
       for name in ("bitwise_and", "bitwise_left_shift", "bitwise_or", "bitwise_right_shift", "bitwise_xor")
       for kind in ("Scalar", "Scalar_Tensor", "Tensor_Scalar")}
    | dict.fromkeys(("digamma", "float_power", "lgamma", "log", "log10", "log1p", "log2", "pow", "rsqrt", "sqrt",
        "special_xlogy", "special_xlog1py", "special_gammaln", "special_entr"), _POSITIVE)
    | {name: {"SHAPE": (4, 6, 8) if name == "glu" else ROWS} for name in ("glu", "median")}
    | {f"fft_{name}{dims}": _FOURIER | ({} if not dims else {"dim": [0, 1]})
       for name in ("fft", "hfft", "ifft", "ihfft", "irfft", "rfft") for dims in ("", "2", "n")}
    | dict.fromkeys(("bartlett_window", "blackman_window", "hamming_window", "hann_window", "kaiser_window"), _WINDOW)
    | {name: {"SHAPE": (2, 4, 6, 5), "p": 0.3, "train": True, "training": True, "generator": BY_NAME["generator"]}
       for name in ("dropout", "alpha_dropout", "feature_dropout", "feature_alpha_dropout")}
    | _spaces("dropout", p=0.3, training=False)
    | _pools("avg_pool") | _pools("max_pool") | _pools("lp_pool") | _convolutions() | _unpools()
    | {f"adaptive_{kind}_pool{dims}{behind}": {"SHAPE": shape, "output_size": [3, 2, 2][: int(dims[0])]}
       for kind in ("avg", "max") for dims, shape in SPACES.items() for behind in ("", "_with_indices")}
    | dict.fromkeys(("cholesky", "linalg_cholesky", "linalg_cholesky_ex", "linalg_eigh", "linalg_eigvalsh", "logdet",
        "cholesky_inverse"), _DEFINITE)
    | dict.fromkeys(("linalg_cond", "linalg_det", "linalg_eig", "linalg_eigvals", "linalg_inv", "linalg_inv_ex",
        "linalg_lu", "linalg_lu_factor", "linalg_lu_factor_ex", "lu", "linalg_matrix_exp", "linalg_slogdet",
        "linalg_svdvals", "matrix_exp", "det", "inverse", "slogdet", "pinverse", "trace"), _MATRICES)
    | {name: {"SHAPE": LINE[1:]} for name in ("trace", "t")}
    | {f"{name}.{kind}": {"FIRST": torch.sum, "start": 1.0 if kind.startswith("S") else torch.tensor(1.0),
                          "end": 3.0 if kind.endswith("Scalar") else torch.tensor(3.0)}
       for name in ("linspace", "logspace") for kind in ("Tensor_Tensor", "Tensor_Scalar", "Scalar_Tensor")}
    | {f"fractional_max_pool{dims}{behind}": {"SHAPE": SPACES[dims], "output_size": 1, "BASE": {"output_size": 1}}
       for dims in ("2d", "3d") for behind in ("", "_with_indices")}
)  # fmt: skip

OF |= {
    "addbmm": {"SHAPE": (6, 3), "batch1": numbers(4, 6, 5), "batch2": numbers(4, 5, 3)},
    "addmm": {"SHAPE": (6, 3), "mat1": numbers(6, 5), "mat2": numbers(5, 3)},
    "addmv": {"SHAPE": (5,), "mat": numbers(5, 6), "vec": numbers(6)},
    "addr": {"SHAPE": MATRIX, "vec1": numbers(5), "vec2": numbers(6, seed=1)},
    "affine_grid": {"SHAPE": (4, 2, 3), "size": [4, 1, 4, 5]},
    "all": {"FIRST": _of_mask}, "any": {"FIRST": _of_mask}, "logical_not": {"FIRST": _of_mask},
    "acosh": {"FIRST": lambda x: x.exp() + 1}, "arccosh": {"FIRST": lambda x: x.exp() + 1},
    "acos": {"FIRST": torch.tanh}, "arccos": {"FIRST": torch.tanh}, "asin": {"FIRST": torch.tanh},
    "arcsin": {"FIRST": torch.tanh}, "atanh": {"FIRST": torch.tanh}, "arctanh": {"FIRST": torch.tanh},
    "erfinv": {"FIRST": torch.tanh}, "special_erfinv": {"FIRST": torch.tanh},
    "arange": {"end": 7, "start": 2, "step": 2}, "range": {"end": 7, "start": 2, "step": 2},
    "baddbmm": {"SHAPE": (4, 6, 3), "batch1": numbers(4, 6, 5), "batch2": numbers(4, 5, 3)},
    "batch_norm": _NORMED, "instance_norm": _NORMED | {"use_input_stats": False},
    "F.instance_norm": {"running_mean": together(numbers(4), running_var=numbers(4).exp(), use_input_stats=False),
                        "running_var": together(numbers(4).exp(), running_mean=numbers(4), use_input_stats=False),
                        "use_input_stats": together(False, running_mean=numbers(4), running_var=numbers(4).exp()),
                        "momentum": 0.3},
    "bernoulli": {"FIRST": torch.sigmoid, "p": 0.3}, "bernoulli.Tensor": {"p": probabilities, "generator": None},
    "bilinear": {"SHAPE": (4, 5), "input2": numbers(4, 3), "weight": numbers(2, 5, 3), "bias": numbers(2)},
    "binary_cross_entropy": {"FIRST": torch.sigmoid, "target": probabilities, "weight": weights},
    "binary_cross_entropy_with_logits": {"target": probabilities, "weight": weights, "pos_weight": weights},
    "binomial": {"FIRST": lambda x: x.exp().round(), "prob": probabilities},
    "bmm": {"mat2": numbers(4, 5, 3)},
    "broadcast_to": {"SHAPE": (4, 1, 5), "size": [4, 6, 5]},
    "bucketize": {"boundaries": lambda x: numbers(9).sort().values},
    "bucketize.Scalar": {"SHAPE": (9,), "FIRST": lambda x: x.sort().values, "self": 0.3},
    "cdist": {"x2": numbers(4, 7, 5), "p": 1.0, "compute_mode": "donot_use_mm_for_euclid_dist"},
    "channel_shuffle": {"SHAPE": IMAGE},
    "cholesky_solve": {"input2": lambda x: definite(numbers(4, 6, 6)), "upper": True},
    "clamp": {"min": 0.1, "max": 0.5}, "clip": {"min": 0.1, "max": 0.5},
    "clamp.Tensor": {"min": like, "max": like}, "clip.Tensor": {"min": like, "max": like},
    "complex": {"imag": like}, "cosine_embedding_loss": {"SHAPE": MATRIX, "input2": like, "target": numbers(5).sign()},
    "cosine_similarity": {"x2": like, "eps": 3.0}, "copy_": {"src": like},
    "cross": {"SHAPE": (3, 3, 5)}, "linalg_cross": {"SHAPE": (3, 3, 3)},
    "cross_entropy": _CLASSES, "nll_loss": _CLASSES, "einsum": {"args": together("abc->ca", FIRST=None)},
    "diag": {"SHAPE": MATRIX}, "diag_embed": {"dim1": 0, "dim2": 0}, "diagonal": {"dim1": 2, "dim2": 2},
    "linalg_diagonal": {"dim1": 0, "dim2": 0},
    "diff": {"prepend": numbers(4, 6, 1), "append": numbers(4, 6, 2)},
    "chunk": {"chunks": 2}, "split": {"split_size": 2, "split_size_or_sections": 2},
    "split_with_sizes": {"split_sizes": [1, 3], "dim": together(1, split_sizes=[2, 4])},
    "tensor_split": {"sections": 3, "indices": [1, 3], "tensor_indices_or_sections": torch.tensor([1, 3])},
    "expand_as": {"SHAPE": (4, 1, 5), "other": numbers(4, 6, 5)}, "view_as": {"other": numbers(24, 5)},
    "reshape_as": {"other": numbers(24, 5)}, "corrcoef": {"SHAPE": MATRIX},
    "cov": {"SHAPE": MATRIX, "fweights": torch.arange(1, 7), "aweights": numbers(6).exp()},
    "gradient": {"spacing": 0.5, "edge_order": 2, "dim": 1}, "gradient.array": {"dim": [0, 2]},
    "gradient.scalararray": {"dim": [0, 2]}, "gradient.scalarrayint": {"spacing": [0.5, 2.0, 1.5], "dim": together(1,
        spacing=[0.5])},
    "gradient.scalarrayarray": {"spacing": [0.5, 2.0], "dim": [0, 2]},
    "gradient.tensorarrayint": {"spacing": [numbers(n).sort().values for n in ROWS],
                                "dim": together(1, spacing=[numbers(6).sort().values])},
    "gradient.tensorarray": {"spacing": [numbers(4).sort().values, numbers(5).sort().values], "dim": [0, 2]},
    "histc": {"FIRST": torch.Tensor.detach, "bins": 7, "min": together(-1, max=2), "max": together(2, min=-1)},
    "dot": {"SHAPE": (6,), "tensor": like}, "vdot": {"SHAPE": (6,)},
    "dsplit": {"SHAPE": (4, 6, 4), "sections": 2, "indices": [1, 2]}, "hsplit": {"sections": 2, "indices": [1, 2]},
    "vsplit": {"sections": 2, "indices": [1, 2]},
    "ctc_loss": {"SHAPE": (6, 4, 5), "FIRST": lambda x: x.log_softmax(-1), "targets": places(5, 4, 2).clamp(1),
                 "input_lengths": [6, 5, 6, 4], "target_lengths": [2, 1, 2, 2], "blank": 4, "reduction": 2,
                 "zero_infinity": True},
    "ctc_loss.Tensor": {"input_lengths": torch.tensor([6, 5, 6, 4]), "target_lengths": torch.tensor([2, 1, 2, 2])},
    "F.ctc_loss": {"reduction": "sum"},
    "embedding_bag": {"SHAPE": (8, 7, 3), "FIRST": lambda x: x[0], "indices": places(7, 9),
                      "offsets": torch.tensor([0, 4, 5]), "mode": 1, "scale_grad_by_freq": True, "sparse": False,
                      "per_sample_weights": together(numbers(9), mode=0), "include_last_offset": True,
                      "padding_idx": 2},
    "embedding_bag.padding_idx": {"mode": 0},
    "F.embedding_bag": {"SHAPE": (4, 6), "FIRST": lambda x: (x.abs() * 5).long() % 7, "weight": numbers(7, 3),
                        "offsets": None, "max_norm": 0.5, "norm_type": None, "mode": "sum",
                        "per_sample_weights": together(numbers(4, 6), mode="sum"), "include_last_offset": None},
    "embedding": {"SHAPE": (8, 7, 3), "FIRST": lambda x: x[0], "indices": lambda x: places(7, 4, 5),
                  "padding_idx": 2},
    "F.embedding": {"SHAPE": (8, 7, 3), "FIRST": lambda x: x.argmax(1), "weight": lambda x: x[0], "max_norm": 0.5,
                    "norm_type": together(1.0, max_norm=0.5)},
    "expand": {"SHAPE": (4, 1, 5), "size": [4, 6, 5]}, "sum_to_size": {"size": [6, 1]},
    "fftshift": {"dim": [1]}, "flatten": {"start_dim": 1, "end_dim": 1}, "flip": {"dims": [1]},
    "fold": {"SHAPE": (2, 8, 12), "output_size": (4, 5), "kernel_size": (2, 2),
             "dilation": together(2, FIRST=lambda x: x[:, :, :6]), "stride": together(2, FIRST=lambda x: x[:, :, :4]),
             "padding": together(1, FIRST=lambda x: x.repeat(1, 1, 3)[:, :, :30])},
    "full": {"fill_value": 1.5}, "full_like": {"fill_value": 1.5}, "new_full": {"fill_value": 1.5},
    "gather": {"index": places(4, 4, 6, 5)}, "gaussian_nll_loss": {"var": weights},
    "gelu": {}, "geometric_": {"p": 0.3}, "ger": {"SHAPE": (6,), "vec2": numbers(3)},
    "grid_sample": {"SHAPE": IMAGE, "grid": numbers(2, 3, 7, 2).tanh(), "mode": "nearest", "padding_mode": "border"},
    "group_norm": _NORMED | {"num_groups": 2}, "gru_cell": _states(3), "rnn_relu_cell": _states(1),
    "rnn_tanh_cell": _states(1), "lstm_cell": _states(4) | {"hx": [numbers(5, 3), numbers(5, 3, seed=1)]},
    "gru": _recurrent(3), "rnn_relu": _recurrent(1), "rnn_tanh": _recurrent(1),
    "lstm": _recurrent(4) | {"hx": [numbers(1, 2, 3), numbers(1, 2, 3, seed=1)]},
    "hardtanh": {"min_val": -0.3, "max_val": 0.3}, "hardswish": {}, "heaviside": {"FIRST": torch.Tensor.detach},
    "hinge_embedding_loss": {"target": signs}, "huber_loss": {"delta": 0.3, "weight": weights},
    "igamma": {"FIRST": lambda x: x.detach().exp(), "other": weights},
    "igammac": {"FIRST": lambda x: x.detach().exp(), "other": weights},
    "special_gammainc": {"FIRST": lambda x: x.detach().exp(), "other": weights},
    "special_gammaincc": {"FIRST": lambda x: x.detach().exp(), "other": weights},
    "index_add": {"index": places(6, 3), "source": numbers(4, 3, 5)},
    "index_copy": {"index": torch.tensor([4, 0, 2]), "source": numbers(4, 3, 5)},
    "index_fill": {"index": places(6, 3)}, "index_fill.int_Tensor": {"value": torch.tensor(1.5, dtype=torch.float64)},
    "index_put": {"indices": [torch.tensor([1, 0, 1])], "values": numbers(3, 6, 5)},
    "index_select": {"index": places(6, 3)}, "inner": {"other": numbers(3, 5)},
    "interpolate": {"SHAPE": IMAGE, "size": (9, 4), "scale_factor": 1.5, "mode": together("bilinear", size=(9, 4)),
                    "align_corners": together(True, size=(9, 4), mode="bilinear"),
                    "recompute_scale_factor": together(True, scale_factor=1.3, mode="bilinear"),
                    "antialias": together(True, size=(9, 4), mode="bilinear")},
    "isin": {"test_elements": like, "assume_unique": together(True, test_elements=torch.arange(30.0).double())},
    "isin.Tensor_Scalar": {"test_element": 0.7, "assume_unique": True},
    "isin.Scalar_Tensor": {"element": 0.7, "assume_unique": True},
    "isclose": {"rtol": 0.5, "atol": 0.5}, "kl_div": {"FIRST": lambda x: x.log_softmax(1), "target": probabilities},
    "kron": {"SHAPE": MATRIX, "other": numbers(2, 3)}, "l1_loss": {"weight": weights}, "mse_loss": {"weight": weights},
    "layer_norm": {"normalized_shape": [5], "weight": numbers(5), "bias": numbers(5, seed=1)},
    "rms_norm": {"normalized_shape": [5], "weight": numbers(5), "bias": numbers(5, seed=1)},
    "ldexp": {"other": integers}, "leaky_relu": {"negative_slope": 0.3}, "lerp": {"end": like},
    "lerp.Scalar": {"weight": 0.3}, "lerp.Tensor": {"weight": probabilities},
    "linalg_cond": _MATRICES | {"p": 1}, "linalg_cond.p_str": {"p": "nuc"},
    "linalg_matrix_norm": {"dtype": _WIDER, "ord": 1, "dim": [0, 2]}, "linalg_matrix_norm.str_ord": {"ord": "nuc"},
    "linalg_matrix_power": _MATRICES, "matrix_power": _MATRICES, "linalg_matmul": {"other": numbers(5, 3)},
    "linalg_matrix_rank": _MATRICES | {"tol": 0.4, "atol": 0.4, "rtol": 0.4, "hermitian": together(True,
        FIRST=definite)},
    "linalg_norm": {"dtype": _WIDER, "SHAPE": MATRIX, "ord": 1}, "linalg_norm.ord_str": {"ord": "nuc", "dim": [1, 0]},
    "linalg_pinv": _MATRICES | {"rcond": 0.3, "atol": 0.3, "rtol": 0.3, "hermitian": together(True, FIRST=definite)},
    "linalg_qr": _MATRICES | {"mode": "complete"},
    "linalg_solve": _DEFINITE | {"B": numbers(4, 3, 2), "left": together(False, B=numbers(4, 2, 3))},
    "linalg_solve_triangular": _DEFINITE | {"B": numbers(4, 3, 2), "left": together(False, B=numbers(4, 2, 3)),
                                            "upper": True},
    "linalg_svd": _MATRICES, "linalg_vecdot": {"y": like}, "linalg_vector_norm": {"dtype": _WIDER, "ord": 3,
        "dim": [1]},
    "linear": {"weight": numbers(3, 5), "bias": numbers(3)}, "linspace": {"start": 1.0, "end": 3.0, "steps": 5},
    "local_response_norm": {"size": 3, "alpha": 0.5, "beta": 0.5, "k": 2.0},
    "log_softmax": {"dtype": together(torch.float32, dim=1)}, "softmax": {"dtype": together(torch.float32, dim=1)},
    "softmin": {"dtype": together(torch.float32, dim=1)},
    "logit": {"FIRST": torch.sigmoid}, "special_logit": {"FIRST": torch.sigmoid},
    "logspace": {"start": 1.0, "end": 3.0, "steps": 5},
    "masked_scatter": {"mask": lambda x: like(x) > 0, "source": like},
    "masked_fill": {"mask": lambda x: like(x) > 0}, "masked_fill.Tensor": {"value": torch.tensor(2.0).double()},
    "matmul": {"other": numbers(5, 3)}, "mm": {"SHAPE": MATRIX, "mat2": numbers(6, 3)},
    "moveaxis": {"source": 0, "destination": 2}, "movedim": {"source": 0, "destination": 2},
    "moveaxis.intlist": {"source": [0], "destination": [2]}, "movedim.intlist": {"source": [0], "destination": [2]},
    "margin_ranking_loss": {"input2": like, "target": signs}, "multi_margin_loss": _SAMPLES | {"p": 2},
    "multilabel_margin_loss": _SAMPLES | {"target": places(6, 5, 6)},
    "multilabel_soft_margin_loss": _SAMPLES | {"target": lambda x: (like(x) > 0).double()},
    "multinomial": {"SHAPE": MATRIX, "FIRST": torch.exp, "num_samples": 3},
    "mv": {"SHAPE": MATRIX, "vec": numbers(6)}, "mvlgamma": {"FIRST": lambda x: x.exp() + 3, "p": 2},
    "nan_to_num": {"FIRST": lambda x: x / like(x).relu(), "nan": 0.5, "posinf": 2.0, "neginf": -3.0},
    "nanquantile": {"q": 0.3}, "nanquantile.": {"q": torch.tensor(0.3).double()},
    "narrow": {"start": 1, "length": 3}, "narrow.Tensor": {"start": torch.tensor(1)},
    "norm": {"dtype": _WIDER, "p": 3, "dim": 1}, "normalize": {"eps": 3.0, "dim": 0},
        "one_hot": {"FIRST": lambda x: x.argmax(1),
                                                                               "num_classes": 7},
    "outer": {"SHAPE": (6,), "vec2": numbers(3)}, "ones": {"size": (2, 3)}, "as_strided": {"stride": (1, 2)},
    "pad": {"SHAPE": IMAGE, "pad": (1, 2, 0, 3), "mode": together("reflect", pad=(1, 2, 2, 1)), "value": 1.5},
    "pairwise_distance": {"x2": like}, "permute": {"dims": [2, 0, 1]},
    "pixel_shuffle": {"SHAPE": IMAGE, "upscale_factor": 2}, "pixel_unshuffle": {"SHAPE": (2, 3, 4, 6),
                                                                              "downscale_factor": 2},
    "poisson": {"FIRST": torch.exp}, "poisson_nll_loss": {"target": lambda x: like(x).exp() * 2, "log_input": together(
        False, FIRST=torch.exp), "eps": together(0.3, log_input=False, FIRST=torch.exp), "full": True},
    "polar": {"FIRST": torch.exp, "angle": like}, "polygamma": {"FIRST": torch.exp},
    "special_polygamma": {"FIRST": torch.exp}, "special_multigammaln": {"FIRST": lambda x: x.exp() + 3, "p": 2},
    "prelu": {"weight": numbers(6)}, "qr": _MATRICES, "quantile": {"q": 0.3},
    "quantile.": {"q": torch.tensor(0.3).double()}, "renorm": {"p": 2, "maxnorm": 0.5},
    "repeat": {"repeats": [2, 1, 3]}, "repeat_interleave": {"repeats": 2},
    "repeat_interleave.Tensor": {"SHAPE": (4,), "FIRST": integers, "output_size": int(integers(numbers(4)).sum())},
    "repeat_interleave.self_Tensor": {"repeats": torch.tensor([1, 0, 2, 1, 1, 3]), "output_size": together(8, dim=1),
                                      "BASE": {"dim": 1}},
    "repeat_interleave.self_int": {"output_size": together(12, dim=1)},
    "reshape": {"shape": [24, 5]}, "view": {"size": [24, 5]},
    "view.dtype": {"dtype": torch.int64}, "roll": {"shifts": [2], "dims": [1]}, "rot90": {"k": 3, "dims": [1, 2]},
    "round": {"decimals": 1}, "special_round": {"decimals": 1}, "rrelu": {"lower": 0.2, "upper": 0.5},
    "scaled_dot_product_attention": {
        "SHAPE": (2, 4, 7, 8), "key": numbers(2, 4, 7, 8), "value": numbers(2, 4, 7, 8, seed=1), "dropout_p": 0.3,
        "attn_mask": numbers(7, 7), "scale": 0.3,
        "enable_gqa": together(True, key=numbers(2, 2, 7, 8), value=numbers(2, 2, 7, 8, seed=1))},
    "scatter": {"index": places(6, 4, 3, 5), "src": numbers(4, 3, 5), "reduce": "add"},
    "scatter_add": {"index": places(6, 4, 3, 5), "src": numbers(4, 3, 5)},
    "scatter_reduce": {"index": places(6, 4, 3, 5), "src": numbers(4, 3, 5), "reduce": "amax"},
    "searchsorted": {"FIRST": lambda x: x.sort(-1).values, "self": numbers(4, 6, 3), "input": numbers(4, 6, 3),
                     "sorter": together(lambda x: x.argsort(-1), FIRST=None)},
    "searchsorted.Scalar": {"SHAPE": (9,), "self": 0.3, "input": 0.3},
    "select": {"index": 2}, "select_scatter": {"src": numbers(4, 5), "index": 2},
    "slice_scatter": {"src": numbers(4, 6, 5), "start": together(1, src=numbers(3, 6, 5)),
                      "end": together(3, src=numbers(3, 6, 5)), "step": together(2, src=numbers(2, 6, 5))},
    "smooth_l1_loss": {"beta": 0.3}, "soft_margin_loss": {"target": signs},
    "softplus": {"beta": 2.0, "threshold": 0.5}, "squeeze": {"SHAPE": (4, 1, 5)},
    "istft": {"SHAPE": (4, 16), "FIRST": spectra, "n_fft": 4, "hop_length": 2, "win_length": 3, "normalized": True,
              "window": torch.hann_window(4).double(), "center": together(False, window=torch.ones(4).double()),
              "length": 12, "onesided": together(False, FIRST=two_sided_spectra),
              "return_complex": together(True, FIRST=two_sided_spectra, onesided=False)},
    "stft": {"SHAPE": (4, 16), "n_fft": 4, "hop_length": 2, "win_length": 3, "window": torch.hann_window(4).double(),
             "pad_mode": "constant", "onesided": False, "BASE": {"return_complex": True},
             "return_complex": True, "align_to_window": together(True, center=False)},
    "swapaxes": {"axis0": 0, "axis1": 2}, "swapdims": {"dim0": 0, "dim1": 2}, "transpose": {"dim0": 0, "dim1": 2},
    "take": {"index": torch.tensor([[0, 7, 2], [3, 3, 50]])}, "take_along_dim": {"indices": places(4, 4, 6, 5)},
    "tensordot": {"b": numbers(6, 5, 2), "dims": together(([2], [1]), b=numbers(6, 5, 2))},
    "_threshold": {"threshold": 0.1, "value": 2.0}, "imag": {"FIRST": lambda x: torch.complex(x, x.sin())},
    "threshold": {"threshold": 0.1, "value": 2.0}, "tile": {"dims": [2, 1, 3]},
    "to.other": {"other": torch.zeros(1)}, "to.device": {"device": torch.device("cpu")},
    "trapezoid": {"x": numbers(5), "dim": together(1, x=numbers(6))}, "trapezoid.dx": {"dim": 1},
    "trapz": {"x": numbers(5), "dim": together(1, x=numbers(6))}, "trapz.dx": {"dim": 1},
    "cumulative_trapezoid": {"x": numbers(5), "dim": together(1, x=numbers(6))}, "cumulative_trapezoid.dx": {"dim": 1},
    "tril_indices": {"row": 3, "col": 4, "dtype": torch.int32},
    "triu_indices": {"row": 3, "col": 4, "dtype": torch.int32},
    "triplet_margin_loss": {"positive": like, "negative": lambda x: numbers(*x.shape, seed=8)},
    "type": {"dtype": torch.float32, "non_blocking": True}, "unflatten": {"sizes": [2, 3]},
    "F.unfold": {"SHAPE": IMAGE}, "unfold": {"dimension": 1, "size": 3, "step": 2},
    "uniform_": {"from": -1.0, "to": 3.0}, "normal_": {"mean": 2.0, "std": 0.5}, "log_normal_": {"mean": 0.2,
        "std": 0.5},
    "cauchy_": {"median": 2.0, "sigma": 0.5}, "random_": {"from": 3, "to": 9}, "exponential_": {"lambd": 2.0},
    "unsafe_chunk": {"chunks": 2}, "unsafe_split": {"split_size": 2},
    "unsafe_split_with_sizes": {"split_sizes": [1, 3], "dim": together(1, split_sizes=[2, 4])},
    "view_as_complex": {"SHAPE": (4, 6, 2)}, "view_as_real": {"FIRST": lambda x: torch.complex(x, x.sin())},
        "where": {"FIRST": _of_mask}, "xlogy": {"FIRST": torch.exp},
    "randint": {"high": 9, "low": 2}, "randint_like": {"high": 9, "low": 2}, "randperm": {"n": 7},
    "scalar_tensor": {"s": 2.0}, "eye": {"n": 3, "m": 4}, "special_zeta": {"FIRST": lambda x: x.exp() + 1},
    "combinations": {"SHAPE": (5,), "r": 3}, "pdist": {"SHAPE": MATRIX}, "linalg_multi_dot": {"SHAPE": (5, 5)},
    "constant_pad_nd": {"pad": [1, 2], "value": 2.5}, "linalg_vander": {"N": 3},
    "fill_diagonal_": {"SHAPE": MATRIX, "fill_value": 2.5, "wrap": True},
    "put": {"index": torch.tensor([0, 7, -1]), "source": numbers(3)},
    "put_": {"index": torch.tensor([0, 7, -1]), "source": numbers(3)},
    "grid_sampler": {"SHAPE": IMAGE, "grid": numbers(2, 3, 7, 2).tanh(), "interpolation_mode": 1, "padding_mode": 1},
    "F.linear_cross_entropy": {
        "SHAPE": MATRIX, "linear_weight": numbers(4, MATRIX[1]), "target": places(4, MATRIX[0]), "options": None,
        "linear_bias": numbers(4), "weight": numbers(4).exp(), "reduction": "sum", "ignore_index": 2,
        "label_smoothing": 0.3,
    },
    "fake_quantize_per_tensor_affine": {"scale": 0.1, "zero_point": 1, "quant_min": -9, "quant_max": 9},
    "fake_quantize_per_tensor_affine.tensor_qparams": {
        "scale": torch.tensor(0.1), "zero_point": torch.tensor(1, dtype=torch.int32)},
    "fake_quantize_per_channel_affine": {
        "FIRST": torch.Tensor.float, "scale": 0.1 + torch.arange(6.0) / 7, "quant_min": -9, "quant_max": 9, "axis": 1,
        "zero_point": torch.zeros(6, dtype=torch.int32)},
}  # fmt: skip
