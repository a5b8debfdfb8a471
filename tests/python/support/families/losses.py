"""All losses of torch.nn."""

import copy
import inspect

import numpy as np
import torch
from torch import nn

import distdl.nn as dnn
from distdl.nn import loss
from support.families import Example
from support.misuses.table import (
    Row,
    Wrong,
    not_a_device,
    not_a_dtype,
    not_a_further_partition,
    not_a_partition,
    not_an_int,
)
from support.tensors import values
from support.versions import TORCH


def scalar(twin, cut):
    """How the result is cut."""
    return (cut if twin.reduction == "none" else None,)


def elementwise(twin, *tensors, second=True):
    """Everything in blocks, but for extents of 1 of the last tensor."""
    cuts = [tuple(range(x.dim())) for x in tensors]
    if isinstance(twin, nn.GaussianNLLLoss):
        cuts[2] = tuple(d if n == m else None for d, (n, m) in enumerate(zip(tensors[2].shape, tensors[0].shape)))  # noqa: B905
    differentiable = tuple(i for i, x in enumerate(tensors) if x.is_floating_point() and i not in constant(twin))
    dims = tensors[0].dim()
    return Example(
        lambda: copy.deepcopy(twin), lambda: tensors, dims, tuple(cuts), scalar(twin, cuts[0]),
        differentiable=differentiable, second=second,
    )  # fmt: skip


def constant(twin):
    """The arguments that torch has no derivatives for, or none of the second order."""
    if isinstance(twin, nn.MarginRankingLoss | nn.CosineEmbeddingLoss):
        return (2,)
    if isinstance(twin, nn.HingeEmbeddingLoss | nn.SoftMarginLoss | nn.MultiLabelSoftMarginLoss):
        return (1,)
    return ()


def of_features(twin, *tensors, axis=None, whole=False, second=True):
    """Losses of rows: targets without the features are cut like the rows."""
    dims = tensors[0].dim()
    axis = dims - 1 if axis is None else axis
    rows = tuple(d for d in range(dims) if d != axis)
    cuts = tuple(tuple(range(dims)) if x.dim() == dims else rows for x in tensors)
    differentiable = tuple(i for i, x in enumerate(tensors) if x.is_floating_point() and i not in constant(twin))
    return Example(
        lambda: copy.deepcopy(twin), lambda: tensors, dims, cuts, scalar(twin, rows), first_of=() if whole else (axis,),
        whole=(axis,) if whole else (), differentiable=differentiable, second=second,
    )  # fmt: skip


def of_labels(twin, input, target):
    """The labels are whole."""
    return of_features(twin, input, target, whole=True, second=False)


def of_classes(twin, input, target):
    """The classes are in the second dimension, or in the only dimension."""
    second = not isinstance(twin, nn.MultiMarginLoss)
    return of_features(twin, input, target, axis=min(input.dim() - 1, 1), second=second)


def floats(*shape, seed=0):
    """Values without ties."""
    steps = torch.linspace(0.05, 1.3, torch.Size(shape).numel(), dtype=torch.float64).view(shape)
    return (values(shape, seed=seed) - 1.5 + (1 + seed) * steps) / 2


def chances(*shape, seed=0):
    """Between 0 and 1."""
    return floats(*shape, seed=seed).sigmoid()


def signs(*shape):
    """1 and -1."""
    return 2 * (values(shape, seed=5) % 2) - 1


def classes(n, *shape):
    """Indices."""
    return values(shape, torch.int64, seed=6) % n


def weights(*shape, seed=7):
    """Positive."""
    return values(shape, seed=seed) / 2 + 0.25


def ctc(twin, log_probs, targets, input_lengths, target_lengths):
    """The batch in blocks, unless there is none, or the targets are put together."""
    lengths = [torch.as_tensor(n) for n in (input_lengths, target_lengths)]
    split = targets.dim() == 2
    cuts = ((0, 1, 2), (1, None), (1,), (1,)) if split else (tuple(range(log_probs.dim())), (None,), *((),) * 2)
    if not split and log_probs.dim() == 3:
        cuts = ((0, 1, 2), (None,), (None,), (None,))
    result = (1,) if log_probs.dim() == 3 else ()
    return Example(
        lambda: copy.deepcopy(twin), lambda: (log_probs, targets, *lengths), log_probs.dim(), cuts,
        scalar(twin, result), whole=(0, 2) if split else tuple(range(log_probs.dim())), differentiable=(0,),
        second=False,
    )  # fmt: skip


def linear(twin, input, target):
    """The batch in blocks. torch's second derivatives are 0 where it cuts the logits into chunks to save memory."""
    if input.dim() == 1:
        cuts, whole, result = ((0,), (None,) * target.dim()), (0,), ()
    else:
        rows = (0, *(None,) * len(twin.out_features))
        cuts = ((0, 1), rows if target.dim() == len(rows) else (0, None, *rows[1:]))
        whole, result = (1,), rows
    return Example(
        lambda: copy.deepcopy(twin), lambda: (input, target), input.dim(), cuts, scalar(twin, result), whole=whole,
        second=twin.options is None,
    )  # fmt: skip


def linear_twin(*arguments, **options):
    """A twin with the same weights on all ranks."""
    torch.manual_seed(4)
    return nn.LinearCrossEntropyLoss(*arguments, dtype=torch.float64, **options)


def adaptive(bias):
    """The batch in blocks."""

    def twin():
        torch.manual_seed(4)
        return nn.AdaptiveLogSoftmaxWithLoss(6, 9, [3, 6], div_value=2.0, head_bias=bias, dtype=torch.float64)

    inputs = (floats(5, 6), torch.tensor([0, 4, 8, 2, 5]))
    return Example(twin, lambda: inputs, 2, ((0, 1), (0,)), ((0,), None), whole=(1,))


def good(shape):
    """All ranks along the batch."""
    return lambda P: {"P_x": P.create_cartesian_topology_partition([P.size if n < 0 else n for n in shape])}


def in_two(P):
    """All ranks along the features, and all along the classes."""
    partition = P.create_cartesian_topology_partition
    options = {"in_features": P.size * 2, "num_classes": 2}
    return {"P_x": partition([1, P.size]), "P_y": partition([1, 1]), "P_W": partition([1, P.size]), **options}


def in_clusters(P):
    """All ranks along the batch."""
    return {**good([-1, 1])(P), "in_features": 4, "n_classes": 5, "cutoffs": [2]}


# Losses whose misuses are all tried. The others share their code.
IN_FULL = ("DistributedCrossEntropyLoss", "DistributedTripletMarginLoss", "DistributedSmoothL1Loss")
spoken = (
    floats(6, 3, 4).log_softmax(2),
    torch.tensor([[1, 3, 1], [3, 3, 0], [1, 0, 0]]),
    torch.tensor([6, 5, 4]),
    torch.tensor([3, 2, 1]),
)
x, y = floats(3, 4), floats(3, 4, seed=1)
EXAMPLES = {
    "L1Loss": elementwise(nn.L1Loss(), x, y),
    "L1Loss none": elementwise(nn.L1Loss(reduction="none"), x, y),
    "MSELoss": elementwise(nn.MSELoss(), floats(2, 3, 4), floats(2, 3, 4, seed=1)),
    "MSELoss none": elementwise(nn.MSELoss(reduction="none"), x, y),
    "SmoothL1Loss": elementwise(nn.SmoothL1Loss(beta=0.5), x, y),
    "SmoothL1Loss beta=0": elementwise(nn.SmoothL1Loss(reduction="sum", beta=0.0), floats(5), floats(5, seed=1)),
    "HuberLoss": elementwise(nn.HuberLoss("sum", delta=0.7), x, y),
    "BCELoss": elementwise(nn.BCELoss(weights(4)), chances(3, 4), chances(3, 4, seed=1)),
    "BCELoss none": elementwise(nn.BCELoss(reduction="none"), chances(5), chances(5, seed=1)),
    "BCEWithLogitsLoss": elementwise(nn.BCEWithLogitsLoss(), x, chances(3, 4)),
    "BCEWithLogitsLoss weighted": elementwise(
        nn.BCEWithLogitsLoss(weights(3, 1), reduction="sum", pos_weight=weights(1, 4)), x, chances(3, 4)
    ),
    "BCEWithLogitsLoss none": elementwise(
        nn.BCEWithLogitsLoss(weights(3, 4), reduction="none", pos_weight=weights(4)), x, chances(3, 4)
    ),
    "KLDivLoss batchmean": elementwise(nn.KLDivLoss(reduction="batchmean"), x.log_softmax(1), chances(3, 4)),
    "KLDivLoss log_target": elementwise(nn.KLDivLoss(reduction="sum", log_target=True), x, y),
    "KLDivLoss none": elementwise(nn.KLDivLoss(reduction="none"), x, chances(3, 4)),
    "PoissonNLLLoss": elementwise(nn.PoissonNLLLoss(), x, values((3, 4))),
    "PoissonNLLLoss full": elementwise(
        nn.PoissonNLLLoss(log_input=False, full=True, eps=0.1, reduction="none"), chances(3, 4), values((3, 4)) + 1.5
    ),
    "GaussianNLLLoss": elementwise(nn.GaussianNLLLoss(), x, y, chances(3, 1)),
    "GaussianNLLLoss full": elementwise(nn.GaussianNLLLoss(full=True, reduction="sum"), x, y, chances(3)),
    "GaussianNLLLoss none": elementwise(nn.GaussianNLLLoss(eps=0.5, reduction="none"), x, y, chances(3, 4)),
    "HingeEmbeddingLoss": elementwise(nn.HingeEmbeddingLoss(1.5), x, signs(3, 4)),
    "HingeEmbeddingLoss none": elementwise(nn.HingeEmbeddingLoss(reduction="none"), x, signs(3, 4).long()),
    "SoftMarginLoss": elementwise(nn.SoftMarginLoss(), x, signs(3, 4).long()),
    "MarginRankingLoss": elementwise(nn.MarginRankingLoss(0.3), x, y, signs(3, 4)),
    "MarginRankingLoss none": elementwise(nn.MarginRankingLoss(reduction="none"), x, y, signs(3, 4).long()),
    "MultiLabelSoftMarginLoss": of_features(nn.MultiLabelSoftMarginLoss(weights(4)), x, signs(3, 4).relu()),
    "MultiLabelSoftMarginLoss none": of_features(
        nn.MultiLabelSoftMarginLoss(reduction="none"), floats(2, 3, 4), values((2, 3, 4), torch.int64) % 2
    ),
    "MultiLabelMarginLoss": of_labels(
        nn.MultiLabelMarginLoss(), x, torch.tensor([[1, 3, -1, 0], [2, -1, 0, 1], [-1, 0, 0, 0]])
    ),
    "MultiLabelMarginLoss none": of_labels(
        nn.MultiLabelMarginLoss(reduction="none"), x, torch.tensor([[1, 3, -1, 0]] * 3)
    ),
    "MultiMarginLoss": of_classes(nn.MultiMarginLoss(), x, classes(4, 3)),
    "MultiMarginLoss p=2": of_classes(nn.MultiMarginLoss(2, 0.5, weights(4), reduction="sum"), x, classes(4, 3)),
    "MultiMarginLoss none": of_classes(nn.MultiMarginLoss(reduction="none"), floats(5), torch.tensor(3)),
    "CosineEmbeddingLoss": of_features(nn.CosineEmbeddingLoss(), x, y, signs(3)),
    "CosineEmbeddingLoss none": of_features(nn.CosineEmbeddingLoss(0.2, reduction="none"), x, y, signs(3).long()),
    "CosineEmbeddingLoss of vectors": of_features(
        nn.CosineEmbeddingLoss(reduction="sum"), floats(5), floats(5, seed=1), torch.tensor(1)
    ),
    "TripletMarginLoss": of_features(nn.TripletMarginLoss(3.0), x, y, floats(3, 4, seed=2)),
    "TripletMarginLoss swap": of_features(
        nn.TripletMarginLoss(2.5, p=3, swap=True, reduction="none"), x, y, floats(3, 4, seed=2)
    ),
    "TripletMarginWithDistanceLoss": of_features(
        nn.TripletMarginWithDistanceLoss(margin=3.0), x, y, floats(3, 4, seed=2), whole=True
    ),
    "TripletMarginWithDistanceLoss none": of_features(
        nn.TripletMarginWithDistanceLoss(
            distance_function=lambda a, b: (a - b).square().sum(-1), swap=True, reduction="none"
        ),
        x, y, floats(3, 4, seed=2), whole=True,
    ),
    "NLLLoss": of_classes(nn.NLLLoss(weights(4)), x, classes(4, 3)),
    "NLLLoss none": of_classes(nn.NLLLoss(ignore_index=1, reduction="none"), floats(2, 3, 2, 2), classes(3, 2, 2, 2)),
    "NLLLoss of a vector": of_classes(nn.NLLLoss(reduction="sum"), floats(5), torch.tensor(2)),
    "CrossEntropyLoss": of_classes(nn.CrossEntropyLoss(), floats(4, 5), classes(5, 4)),
    "CrossEntropyLoss weighted": of_classes(
        nn.CrossEntropyLoss(weights(3), ignore_index=2, label_smoothing=0.2), floats(2, 3, 4), classes(3, 2, 4)
    ),
    "CrossEntropyLoss none": of_classes(
        nn.CrossEntropyLoss(weights(3), ignore_index=0, reduction="none"), floats(2, 3, 2, 2), classes(3, 2, 2, 2)
    ),
    "CrossEntropyLoss smooth": of_classes(
        nn.CrossEntropyLoss(label_smoothing=0.3, reduction="none"), floats(3, 4), classes(4, 3)
    ),
    "CrossEntropyLoss of probabilities": of_classes(
        nn.CrossEntropyLoss(weights(4), label_smoothing=0.1), x, chances(3, 4)
    ),
    "AdaptiveLogSoftmaxWithLoss": adaptive(bias=True),
    "AdaptiveLogSoftmaxWithLoss without a bias": adaptive(bias=False),
    "CTCLoss": ctc(nn.CTCLoss(), *spoken),
    "CTCLoss none": ctc(nn.CTCLoss(blank=2, reduction="none"), *spoken),
    "CrossEntropyLoss of probabilities none": of_classes(nn.CrossEntropyLoss(reduction="none"), floats(4), chances(4)),
}  # fmt: skip
if TORCH >= (2, 13):  # which has LinearCrossEntropyLoss
    EXAMPLES |= {
        "LinearCrossEntropyLoss": linear(linear_twin(4, 5, bias=True), x, classes(5, 3)),
        "LinearCrossEntropyLoss none": linear(
            linear_twin(4, 3, out_features=(2,), weight=weights(3), ignore_index=1, reduction="none"),
            x,
            classes(3, 3, 2),
        ),
        "LinearCrossEntropyLoss of probabilities": linear(linear_twin(4, 5, label_smoothing=0.2), x, chances(3, 5)),
    }


described = {
    **dict.fromkeys(
        (
            "L1Loss", "MSELoss", "SmoothL1Loss", "HuberLoss", "BCELoss", "BCEWithLogitsLoss", "KLDivLoss",
            "PoissonNLLLoss", "GaussianNLLLoss", "HingeEmbeddingLoss", "SoftMarginLoss", "MarginRankingLoss",
        ),
        elementwise,
    ),
    **dict.fromkeys(("MultiMarginLoss", "NLLLoss", "CrossEntropyLoss"), of_classes),
    **dict.fromkeys(("MultiLabelSoftMarginLoss", "CosineEmbeddingLoss"), of_features),
    "MultiLabelMarginLoss": of_labels,
    "CTCLoss": ctc,
    "LinearCrossEntropyLoss": linear,
}  # fmt: skip
SAMPLES = {
    "L1Loss": 10, "MSELoss": 16, "SmoothL1Loss": 16, "HuberLoss": 8, "BCELoss": 12, "BCEWithLogitsLoss": 12,
    "KLDivLoss": 20, "PoissonNLLLoss": 14, "GaussianNLLLoss": 8, "HingeEmbeddingLoss": 20, "SoftMarginLoss": 8,
    "MarginRankingLoss": 10, "MultiLabelSoftMarginLoss": 10, "MultiLabelMarginLoss": 16, "MultiMarginLoss": 14,
    "CosineEmbeddingLoss": 10, "NLLLoss": 56, "CrossEntropyLoss": 210, "CTCLoss": 80,
}  # fmt: skip
if TORCH >= (2, 13):
    SAMPLES["LinearCrossEntropyLoss"] = 1714


def not_a_number(name):
    """For an option that is a number."""
    return [Wrong(v, TypeError, name) for v in ("a", None, 1j, [1.0])]


NOT = {
    "weight": [Wrong(v, TypeError, "weight") for v in ([1.0], "a", 3, np.ones(2))],
    "pos_weight": [Wrong(v, TypeError, "pos_weight") for v in ([1.0], "a", 3)],
    "ignore_index": not_an_int("ignore_index"),
    "label_smoothing": [Wrong(v, ValueError, r"\[0, 1\]") for v in (-0.1, 1.5, float("nan"), float("inf"))]
    + not_a_number("label_smoothing"),
    "log_target": [Wrong(v, TypeError, "log_target") for v in (None, 1, "a")],
    "log_input": [Wrong(v, TypeError, "log_input") for v in (None, 1, "a")],
    "full": [Wrong(v, TypeError, "full") for v in (None, 1, "a")],
    "swap": [Wrong(v, TypeError, "swap") for v in (None, 1, "a")],
    "eps": not_a_number("eps"),
    "margin": not_a_number("margin"),
    "beta": [*not_a_number("beta"), Wrong(-1.0, RuntimeError, "beta")],
    "delta": [*not_a_number("delta"), Wrong(0.0, RuntimeError, "delta")],
    "blank": [*not_an_int("blank"), Wrong(-1, ValueError, "negative")],
    "zero_infinity": [Wrong(v, TypeError, "zero_infinity") for v in (None, 1, "a")],
    "in_features": not_an_int("in_features"),
    "num_classes": not_an_int("num_classes"),
    "out_features": [Wrong(v, TypeError, "out_features") for v in (3, "a", (1.5,), None)],
    "dtype": not_a_dtype(),
    "device": not_a_device(),
    "P_y": not_a_further_partition("P_y is not given"),
    "P_W": not_a_further_partition("P_W is not given"),
    "n_classes": not_an_int("n_classes"),
    "cutoffs": [Wrong([2, 1], ValueError, "cutoffs"), Wrong(3, TypeError, "cutoffs"), Wrong([], ValueError, "cutoffs")],
    "div_value": not_a_number("div_value"),
    "distance_function": [Wrong(v, TypeError, "distance_function") for v in (3, "a")],
}
OTHER = {
    "n_classes": 4, "cutoffs": [1], "div_value": 2.0, "head_bias": True,
    "in_features": 3, "num_classes": 3, "out_features": (2,), "bias": True, "dtype": torch.float64, "device": "meta",
    "blank": 1, "zero_infinity": True,
    "reduction": "sum", "weight": torch.ones(1), "pos_weight": torch.ones(1), "ignore_index": 1, "label_smoothing": 0.5,
    "log_target": True, "log_input": False, "full": True, "swap": True, "eps": 0.25, "margin": 0.25, "beta": 0.25,
    "delta": 0.25, "p": 2, "distance_function": torch.dist,
}  # fmt: skip


def rows() -> dict[str, Row]:
    """The rows of the constructors."""
    table = {}
    for name in loss.__all__:
        kind = getattr(dnn, name)
        wrong = {"P_x": not_a_partition()}
        wrong["reduction"] = [Wrong(v, ValueError, "reduction") for v in ("average", None, 3, "")]
        options = [option for option in inspect.signature(kind).parameters if option != "P_x"]
        wrong |= {option: NOT[option] for option in options if option in NOT}
        if "Triplet" in name:
            wrong["margin"] = [*NOT["margin"], Wrong(0.0, ValueError, "margin"), Wrong(-1.0, ValueError, "margin")]
        if name == "DistributedTripletMarginLoss":
            wrong["p"] = not_a_number("p=")
        if name == "DistributedMultiMarginLoss":
            wrong["p"] = [*not_an_int("p="), Wrong(3, ValueError, "1 or 2"), Wrong(0, ValueError, "1 or 2")]
        if name not in IN_FULL:
            wrong = {option: misuses[:2] for option, misuses in wrong.items()}
        other = {option: OTHER[option] for option in options if option in OTHER}
        if name == "DistributedTripletMarginLoss":
            other["p"] = 1.0
        if "Linear" in name:  # ignore_index may be None
            wrong["ignore_index"] = [misuse for misuse in wrong["ignore_index"] if misuse.value is not None]
            wrong |= {"label_smoothing": NOT["label_smoothing"], "out_features": NOT["out_features"]}
            table[f"nn.{name}"] = Row(kind, in_two, wrong, other)
            continue
        if "Adaptive" in name:
            del wrong["reduction"]
            table[f"nn.{name}"] = Row(kind, in_clusters, wrong, other)
            continue
        table[f"nn.{name}"] = Row(kind, good([1, -1, 1] if "CTC" in name else [-1, 1]), wrong, other)
    return table
