"""A module for each class of torch.nn, and what it is called with."""

import torch

from support.families import EXAMPLES as FAMILY_EXAMPLES
from support.tensors import values


def padding_layer(kind, dims):
    """With widths of 2, and with 1.5 where constants are filled in."""
    return getattr(torch.nn, f"{kind}Pad{dims}d")(*([2, 1.5] if kind == "Constant" else [2]))


# One module for each class of torch.nn in the table, with options other than the defaults, and its input.
EXAMPLES = {
    torch.nn.Linear: (lambda: torch.nn.Linear(5, 4, bias=False), [6, 5]),
    torch.nn.Conv1d: (lambda: torch.nn.Conv1d(2, 4, 3, stride=2, padding=2, dilation=2, groups=2), [2, 2, 13]),
    torch.nn.Conv2d: (lambda: torch.nn.Conv2d(2, 3, (3, 1), padding="same", padding_mode="circular"), [2, 2, 6, 5]),
    torch.nn.Conv3d: (lambda: torch.nn.Conv3d(1, 2, 2, bias=False), [2, 1, 3, 3, 5]),
    torch.nn.ConvTranspose1d: (lambda: torch.nn.ConvTranspose1d(2, 3, 4, 2, output_padding=1), [1, 2, 5]),
    torch.nn.ConvTranspose2d: (lambda: torch.nn.ConvTranspose2d(2, 4, 3, groups=2, dilation=2), [1, 2, 4, 5]),
    torch.nn.ConvTranspose3d: (lambda: torch.nn.ConvTranspose3d(2, 1, 2, padding=1), [1, 2, 3, 3, 5]),
    torch.nn.MaxPool1d: (lambda: torch.nn.MaxPool1d(3, 2, padding=1, dilation=2), [1, 2, 11]),
    torch.nn.MaxPool2d: (lambda: torch.nn.MaxPool2d((2, 3), ceil_mode=True), [1, 2, 5, 7]),
    torch.nn.MaxPool3d: (lambda: torch.nn.MaxPool3d(2, 1), [1, 2, 3, 4, 5]),
    torch.nn.AvgPool1d: (lambda: torch.nn.AvgPool1d(3, padding=1, count_include_pad=False), [1, 2, 11]),
    torch.nn.AvgPool2d: (lambda: torch.nn.AvgPool2d(2, divisor_override=3), [1, 2, 5, 7]),
    torch.nn.AvgPool3d: (lambda: torch.nn.AvgPool3d(2, 1), [1, 2, 3, 4, 5]),
    torch.nn.LPPool1d: (lambda: torch.nn.LPPool1d(3, 2), [1, 2, 11]),
    torch.nn.LPPool2d: (lambda: torch.nn.LPPool2d(2, 3, stride=1), [1, 2, 5, 7]),
    torch.nn.LPPool3d: (lambda: torch.nn.LPPool3d(1.5, 2, ceil_mode=True), [1, 2, 3, 4, 5]),
    torch.nn.AdaptiveMaxPool1d: (lambda: torch.nn.AdaptiveMaxPool1d(3), [1, 2, 11]),
    torch.nn.AdaptiveMaxPool2d: (lambda: torch.nn.AdaptiveMaxPool2d((None, 3)), [1, 2, 5, 7]),
    torch.nn.AdaptiveMaxPool3d: (lambda: torch.nn.AdaptiveMaxPool3d(2), [1, 2, 3, 4, 5]),
    torch.nn.AdaptiveAvgPool1d: (lambda: torch.nn.AdaptiveAvgPool1d(3), [1, 2, 11]),
    torch.nn.AdaptiveAvgPool2d: (lambda: torch.nn.AdaptiveAvgPool2d((2, None)), [1, 2, 5, 7]),
    torch.nn.AdaptiveAvgPool3d: (lambda: torch.nn.AdaptiveAvgPool3d(1), [1, 2, 3, 4, 5]),
    torch.nn.Upsample: (lambda: torch.nn.Upsample(scale_factor=1.5, mode="bilinear", align_corners=True), [1, 2, 5, 7]),
    torch.nn.MSELoss: (lambda: torch.nn.MSELoss(reduction="sum"), [3, 8]),
    torch.nn.CrossEntropyLoss: (
        lambda: torch.nn.CrossEntropyLoss(torch.arange(8.0).double(), ignore_index=1, label_smoothing=0.1), [3, 8],
    ),
    **{
        getattr(torch.nn, f"{kind}Pad{dims}d"): (
            lambda kind=kind, dims=dims: padding_layer(kind, dims),
            [1, 2, 3, 4, 5][: 2 + dims],
        )
        for kind in ("Constant", "Zero", "Reflection", "Replication", "Circular")
        for dims in (1, 2, 3)
    },
}  # fmt: skip


def of_shapes(make, *shapes):
    """Makers of a module and of the tensors of a call."""
    return make, lambda: tuple(values(shape, seed=seed) / 2 for seed, shape in enumerate(shapes))


def lazy(kind, *arguments, dims=0):
    """A layer that finds its number of inputs in its first call."""
    return of_shapes(lambda: kind(*arguments), (2, 3, 5, 5, 5)[: 2 + dims])


class WithParameters(torch.nn.Module):
    """A list or a dict of parameters that scale the input."""

    def __init__(self, held):
        super().__init__()
        self.held = held

    def forward(self, x):
        held = self.held.values() if isinstance(self.held, torch.nn.ParameterDict) else self.held
        return sum(x * parameter for parameter in held)


class WithModules(torch.nn.Module):
    """A list or a dict of modules that run in turn."""

    def __init__(self, held):
        super().__init__()
        self.held = held

    def forward(self, x):
        for module in self.held.values() if isinstance(self.held, torch.nn.ModuleDict) else self.held:
            x = module(x)
        return x


_nn, _image = torch.nn, (4, 3, 6, 5)
_families = [(type(example.twin()), (example.twin, example.inputs)) for example in reversed(FAMILY_EXAMPLES.values())]
CALLS = {
    **{kind: call for kind, call in _families if kind.__module__.startswith("torch.nn.")},
    **{kind: of_shapes(*shapes) for kind, shapes in EXAMPLES.items() if not issubclass(kind, _nn.modules.loss._Loss)},
    **{getattr(_nn, name): of_shapes(getattr(_nn, name), _image) for name in (
        "CELU", "ELU", "GELU", "Hardshrink", "Hardsigmoid", "Hardswish", "Hardtanh", "Identity", "LeakyReLU",
        "LogSigmoid", "Mish", "ReLU", "ReLU6", "SELU", "SiLU", "Sigmoid", "Softplus", "Softshrink", "Softsign", "Tanh",
        "Tanhshrink", "Module", "Container", "Dropout", "Dropout2d", "AlphaDropout", "FeatureAlphaDropout", "RReLU",
    )},
    _nn.Dropout1d: of_shapes(_nn.Dropout1d, (4, 3, 6)),
    _nn.Dropout3d: of_shapes(_nn.Dropout3d, (4, 3, 2, 6, 5)),
    _nn.TransformerEncoder: of_shapes(
        lambda: _nn.TransformerEncoder(_nn.TransformerEncoderLayer(4, 2, 8), 2, enable_nested_tensor=False), (5, 2, 4)
    ),
    _nn.Threshold: of_shapes(lambda: _nn.Threshold(0.5, 0.0), _image),
    _nn.CrossMapLRN2d: of_shapes(lambda: _nn.CrossMapLRN2d(3), _image),
    **{
        kind: of_shapes(lambda kind=kind: kind(3, 2, batch_first=True), (4, 5, 3))
        for kind in (_nn.RNN, _nn.LSTM, _nn.GRU)
    },
    **{kind: of_shapes(lambda kind=kind: kind(3, 2), (4, 3)) for kind in (_nn.RNNCell, _nn.LSTMCell, _nn.GRUCell)},
    _nn.RNNBase: of_shapes(lambda: _nn.RNNBase("GRU", 3, 2), (4, 5, 3)),
    _nn.RNNCellBase: of_shapes(lambda: _nn.RNNCellBase(3, 2, True, 3), (4, 3)),
    _nn.Sequential: of_shapes(lambda: _nn.Sequential(_nn.Linear(5, 4), _nn.Tanh()), (4, 5)),
    _nn.ModuleList: of_shapes(lambda: WithModules(_nn.ModuleList([_nn.Linear(5, 4)])), (4, 5)),
    _nn.ModuleDict: of_shapes(lambda: WithModules(_nn.ModuleDict({"one": _nn.Linear(5, 4)})), (4, 5)),
    _nn.ParameterList: of_shapes(lambda: WithParameters(_nn.ParameterList([torch.rand(5)])), (4, 5)),
    _nn.ParameterDict: of_shapes(lambda: WithParameters(_nn.ParameterDict({"one": torch.rand(5)})), (4, 5)),
    _nn.DataParallel: of_shapes(lambda: _nn.DataParallel(_nn.Linear(5, 4)), (4, 5)),
    _nn.NLLLoss2d: (lambda: _nn.NLLLoss2d(), FAMILY_EXAMPLES["NLLLoss"].inputs),
    _nn.LazyLinear: lazy(_nn.LazyLinear, 4),
    **{
        getattr(_nn, f"Lazy{kind}{dims}d"): lazy(getattr(_nn, f"Lazy{kind}{dims}d"), *arguments, dims=dims)
        for kind, arguments in (("Conv", (2, 3)), ("ConvTranspose", (2, 3)), ("BatchNorm", ()), ("InstanceNorm", ()))
        for dims in (1, 2, 3)
    },
}  # fmt: skip
"""By class of torch.nn: makers of a module of it, or of a model around it, and of the whole tensors."""
