"""The tables of window_layers.rst: what each layer does, its options, and the tests that show it.

`write_all(folder)` writes them, and the page includes them. tests/python/nn/test_documented_options.py checks that the
options are those of torch.nn, and that the tests exist.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Family:
    """Layers that have tables together. Names of tests, as in TESTS, stand in words behind what they show.

    Attributes:
        columns: what the first table says of each layer.
        layers: by layer, a cell and its tests for each column.
        options: names of options, the tests by layer, and the values that these layers take.
    """

    columns: Sequence[str]
    layers: Mapping[str, Sequence[tuple[str, str]]]
    options: Sequence[tuple[str, Mapping[str, str], str]]

    def tests(self) -> Iterator[tuple[str, str]]:
        """What is claimed, and the names of its tests."""
        for layer, cells in self.layers.items():
            yield from ((f"{layer}, {column}", tests) for column, (_, tests) in zip(self.columns, cells, strict=True))
        for names, layers, _ in self.options:
            yield from ((f"{names} of {layer}", tests) for layer, tests in layers.items())


CONVOLUTION = Family(
    columns=(
        "splits space",
        "splits channels",
        "splits the batch",
        "takes input without a batch",
        "blocks of the output, in space",
    ),
    layers={
        "FeatureConv": (
            ("yes", "feature"),
            ("no", "one-channel"),
            ("yes", "feature"),
            ("yes", "feature"),
            ("balanced or aligned", "feature wide"),
        ),
        "ChannelConv": (
            ("no", "misfits"),
            ("yes", "channels"),
            ("yes", "channel"),
            ("yes", "channel"),
            ("a single block", "channel"),
        ),
        "GeneralConv": (
            ("yes", "general"),
            ("yes", "channels"),
            ("yes", "general"),
            ("yes", "general"),
            ("balanced or aligned", "general"),
        ),
        "ConvTranspose": (
            ("yes", "transposed"),
            ("yes", "transposed"),
            ("yes", "transposed"),
            ("yes", "transposed"),
            ("balanced or aligned", "transposed transposed-wide"),
        ),
        "Pad": (
            ("yes", "pad"),
            ("yes", "pad"),
            ("yes", "pad"),
            ("yes", "pad"),
            ("balanced or aligned", "pad"),
        ),
    },
    options=[
        ("``in_channels``, ``out_channels``", {"FeatureConv": "feature"}, "any number"),
        (
            "``in_channels``, ``out_channels``",
            {"ChannelConv": "channels", "GeneralConv": "channels", "ConvTranspose": "transposed"},
            "any number, also less than the number of blocks",
        ),
        (
            "``kernel_size``, ``stride``",
            {
                "FeatureConv": "feature",
                "ChannelConv": "channel",
                "GeneralConv": "general",
                "ConvTranspose": "transposed transposed-wide",
            },
            "any",
        ),
        (
            "``padding``",
            {"FeatureConv": "feature wide", "ChannelConv": "channel", "GeneralConv": "general"},
            "numbers, ``'same'``, ``'valid'``",
        ),
        ("``padding``", {"ConvTranspose": "transposed"}, "numbers"),
        (
            "``dilation``",
            {
                "FeatureConv": "feature",
                "ChannelConv": "channel",
                "GeneralConv": "general",
                "ConvTranspose": "transposed",
            },
            "any",
        ),
        ("``groups``", {"FeatureConv": "feature"}, "any"),
        (
            "``groups``",
            {"ChannelConv": "channel depthwise misfits", "GeneralConv": "general misfits"},
            "whole groups in each block",
        ),
        ("``groups``", {"ConvTranspose": "transposed"}, "whole groups in each block; any where channels are not split"),
        (
            "``bias``",
            {
                "FeatureConv": "feature",
                "ChannelConv": "channel",
                "GeneralConv": "general",
                "ConvTranspose": "transposed",
            },
            "yes, no",
        ),
        (
            "``padding_mode``",
            {"FeatureConv": "feature", "ChannelConv": "channel", "GeneralConv": "general"},
            "all four",
        ),
        ("``padding_mode``", {"ConvTranspose": "transposed-refused"}, "``'zeros'``, as in ``torch.nn``"),
        ("``output_padding``", {"ConvTranspose": "transposed transposed-refused"}, "any less than stride or dilation"),
        ("``output_size``, at the call", {"ConvTranspose": "output-size"}, "any form that torch takes"),
        (
            "``device``, ``dtype``",
            {"FeatureConv": "device", "ChannelConv": "device", "GeneralConv": "device", "ConvTranspose": "device"},
            "any; the same dtype and kind of device on all ranks",
        ),
        ("``pad``", {"Pad": "pad pad-wide"}, "any dimensions; negative widths crop"),
        ("``mode``", {"Pad": "pad"}, "all four"),
        ("``value``", {"Pad": "pad"}, "any number"),
    ],
)
EVERY_DTYPE = "feature-dtypes channel general transposed pad-dtypes"  # the tests that the first layers take all dtypes
POOLING = Family(
    columns=(
        "splits space, channels and batch",
        "takes input without a batch",
        "blocks of the output, in space",
        "dtypes other than float32 and float64",
    ),
    layers={
        "MaxPool": (
            ("yes", "max"),
            ("yes", "max"),
            ("balanced or aligned", "max"),
            ("half precision, integers", "max-dtypes"),
        ),
        "AvgPool": (
            ("yes", "average"),
            ("yes", "average"),
            ("balanced or aligned", "average"),
            ("half precision, int64", "average-dtypes"),
        ),
        "LPPool": (
            ("yes", "powers"),
            ("yes", "powers"),
            ("balanced or aligned", "powers"),
            ("half precision", "powers-dtypes"),
        ),
        "AdaptiveMaxPool": (
            ("yes", "adaptive-max"),
            ("yes", "adaptive-max"),
            ("balanced or aligned", "adaptive-max few-outputs"),
            ("half precision", "adaptive-half"),
        ),
        "AdaptiveAvgPool": (
            ("yes", "adaptive-average"),
            ("yes", "adaptive-average"),
            ("balanced or aligned", "adaptive-average few-outputs"),
            ("half precision", "adaptive-half"),
        ),
        "Upsample": (
            ("yes", "upsample"),
            ("no, as in ``torch.nn``", "upsample-mistakes"),
            ("balanced or aligned", "upsample"),
            ("half precision; uint8 for ``mode='nearest'`` and ``'nearest-exact'``", "upsample-half bytes"),
        ),
    },
    options=[
        (
            "``kernel_size``, ``stride``, ``ceil_mode``",
            {"MaxPool": "max", "AvgPool": "average", "LPPool": "powers"},
            "any",
        ),
        ("``padding``", {"MaxPool": "max pool-refused", "AvgPool": "average pool-refused"}, "up to half of the kernel"),
        ("``dilation``", {"MaxPool": "max"}, "any"),
        (
            "``return_indices``",
            {"MaxPool": "max", "AdaptiveMaxPool": "adaptive-max"},
            "yes, no; indices of the whole tensor",
        ),
        ("``count_include_pad``", {"AvgPool": "average"}, "yes, no"),
        ("``divisor_override``, not in 1-d", {"AvgPool": "average divisor"}, "any but 0"),
        ("``norm_type``", {"LPPool": "powers norms"}, "any but 0"),
        (
            "``output_size``",
            {"AdaptiveMaxPool": "adaptive-max few-outputs", "AdaptiveAvgPool": "adaptive-average few-outputs"},
            "int, tuple, None in a tuple",
        ),
        ("``size``", {"Upsample": "upsample"}, "int or tuple"),
        ("``scale_factor``, ``recompute_scale_factor``", {"Upsample": "upsample"}, "any"),
        ("``mode``", {"Upsample": "upsample"}, "all of ``torch.nn.functional.interpolate``"),
        ("``align_corners``", {"Upsample": "upsample"}, "yes, no"),
    ],
)
TESTS = {
    "feature": "test_conv.py::test_equals_conv",
    "one-channel": "test_conv.py::test_partitions_that_do_not_fit_raise_on_all",
    "wide": "test_conv.py::test_windows_wider_than_many_blocks",
    "feature-dtypes": "test_conv.py::test_dtypes",
    "general": "test_conv_channels.py::test_equals_conv",
    "channel": "test_conv_channels.py::test_channels_alone_with_any_options",
    "channels": "test_conv_channels.py::test_channels_of_either_side",
    "depthwise": "test_conv_channels.py::test_depthwise",
    "misfits": "test_conv_channels.py::test_partitions_that_do_not_fit_raise_on_all",
    "device": "test_conv_channels.py::test_device_and_dtype",
    "transposed": "test_conv_transpose.py::test_equals_conv_transpose",
    "transposed-wide": "test_conv_transpose.py::test_outputs_from_many_blocks_or_none",
    "transposed-refused": "test_conv_transpose.py::test_what_torch_refuses_raises_on_all",
    "output-size": "test_conv_transpose.py::test_output_size",
    "pad": "test_pad.py::test_equals_pad",
    "pad-dtypes": "test_pad.py::test_dtypes",
    "pad-wide": "test_pad.py::test_wider_than_many_blocks",
    "max": "test_pooling.py::test_equals_max_pool",
    "average": "test_pooling.py::test_equals_avg_pool",
    "powers": "test_pooling.py::test_equals_lp_pool",
    "max-dtypes": "test_pooling.py::test_max_pool_of_other_dtypes",
    "average-dtypes": "test_pooling.py::test_avg_pool_of_other_dtypes",
    "powers-dtypes": "test_pooling.py::test_lp_pool_in_half_precision",
    "pool-refused": "test_pooling.py::test_what_torch_refuses_raises_on_all",
    "divisor": "test_pooling.py::test_divisor_zero_raises_on_all",
    "norms": "test_pooling.py::test_norms_that_torch_refuses_raise_on_all",
    "adaptive-max": "test_adaptive_pooling.py::test_equals_adaptive_max_pool",
    "adaptive-average": "test_adaptive_pooling.py::test_equals_adaptive_avg_pool",
    "adaptive-half": "test_adaptive_pooling.py::test_half_precision",
    "few-outputs": "test_adaptive_pooling.py::test_fewer_outputs_than_workers",
    "upsample": "test_upsample.py::test_equals_upsample",
    "upsample-half": "test_upsample.py::test_half_precision",
    "bytes": "test_upsample.py::test_bytes",
    "upsample-mistakes": "test_upsample.py::test_mistakes_on_the_last_rank_raise_on_all",
}

FAMILIES = {"convolution": CONVOLUTION, "pooling": POOLING}


def _table(widths: str, rows: Sequence[Sequence[str]]) -> str:
    lines = [f".. list-table::\n   :header-rows: 1\n   :widths: {widths}\n\n"]
    for first, *others in rows:
        lines += [f"   * - {first}\n", *(f"     - {cell}\n" for cell in others)]
    return "".join(lines)


def write_all(folder: Path) -> None:
    """Write a table of the layers and a table of the options for each family."""
    for name, family in FAMILIES.items():
        layers = [(layer, *(cell for cell, _ in cells)) for layer, cells in family.layers.items()]
        widths = " ".join(["21", *["16"] * (len(family.columns) - 1), "26"])
        options = [(names, ", ".join(tests), values) for names, tests, values in family.options]
        tables = {
            "layers": _table(widths, [("Layer", *family.columns), *layers]),
            "options": _table("26 36 38", [("Option", "Layers", "Values"), *options]),
        }
        for kind, text in tables.items():
            (folder / f"{name}-{kind}.rst").write_text(text)
