"""Embeddings with the whole table on every worker, and with the table split over the workers of P_x."""

import dataclasses
import math

import torch

import distdl.nn as dnn
from support.blocks import grid
from support.families import Example
from support.misuses.table import (
    Row,
    Wrong,
    grid_of,
    not_a_device,
    not_a_dtype,
    not_a_further_partition,
    not_a_partition,
    not_an_int,
)


def indices(shape, rows, dtype=torch.int64):
    """Some of them several times, some never."""
    n = torch.Size(shape).numel()
    return (torch.arange(n, dtype=dtype) * 5 % 7 % rows).reshape(shape)


def made(rows, features, **options):
    """The same on all ranks."""
    torch.manual_seed(1)
    return torch.nn.Embedding(rows, features, dtype=torch.float64, **options)


def example(shape, rows=6, features=4, split=None, second=True, dtype=torch.int64, **options):
    """The table is split over the workers of P_x as `split`, given their number, says."""
    every = tuple(range(len(shape)))

    def layer(twin, P_x):
        return dnn.DistributedEmbedding.from_sequential(twin, P_x, P_w=grid(P_x, split(math.prod(P_x.shape))))

    return Example(
        lambda: made(rows, features, **options),
        lambda: (indices(shape, rows, dtype),),
        len(shape),
        (every,),
        ((*every, None),),
        second=second,
        layer=None if split is None else layer,
    )


def in_rows(n):
    return (n, 1)


def in_features(n):
    return (1, n)


OPTIONS = {
    "": {},
    "padding": {"padding_idx": -2},
    "max_norm": {"max_norm": 1.5, "padding_idx": 1},
    "norm_type": {"max_norm": 2.0, "norm_type": 1.0},
    # torch leaves the frequencies out of its second derivatives.
    "frequencies": {"scale_grad_by_freq": True, "second": False},
}
EXAMPLES = {f"Embedding {name}": example((4, 3), **options) for name, options in OPTIONS.items()}
EXAMPLES |= {
    f"Embedding {name} {split.__name__}": example((4, 3), split=split, **options)
    for name, options in OPTIONS.items()
    for split in (in_rows, in_features)
}
EXAMPLES["Embedding of a vector"] = example((5,), dtype=torch.int32)
EXAMPLES["Embedding with few rows"] = example((2, 3, 2), rows=2, split=in_rows)


def bag(split=None, **options):
    """Bags of equal sizes. The table is split as for :func:`example`."""

    def twin():
        torch.manual_seed(1)
        return torch.nn.EmbeddingBag(6, 4, dtype=torch.float64, **options)

    def layer(twin, P_x):
        return dnn.DistributedEmbeddingBag.from_sequential(twin, P_x, P_w=grid(P_x, split(math.prod(P_x.shape))))

    made = None if split is None else layer
    return Example(
        twin, lambda: (indices((5, 3), 6),), 2, ((0, 1),), ((0, None),), whole=(1,), second=False, layer=made
    )


EXAMPLES |= {
    f"EmbeddingBag {options}{split.__name__ if split else ''}": bag(split, **options)
    for split in (None, in_rows, in_features)
    for options in (
        {"mode": "sum", "padding_idx": 2},
        {"mode": "mean", "max_norm": 1.5},
        {"mode": "max"},
    )
}


class SumOfEmbeddings(torch.nn.Embedding):
    """A bag by its definition: torch 2.13 divides gradients of bags by frequencies of other rows (issue 190063)."""

    def forward(self, input):
        return super().forward(input).sum(1)


def by_frequency():
    """The same on all ranks."""
    torch.manual_seed(1)
    return SumOfEmbeddings(6, 4, scale_grad_by_freq=True, dtype=torch.float64)


def bag_like(twin, P_x):
    """The bag with this table."""
    like = torch.nn.EmbeddingBag(6, 4, mode="sum", scale_grad_by_freq=True, _weight=twin.weight.detach().clone())
    return dnn.DistributedEmbeddingBag.from_sequential(like, P_x)


EXAMPLES["EmbeddingBag by frequency"] = dataclasses.replace(bag(), twin=by_frequency, layer=bag_like)


def embedding(twin, x):
    """Any dimension of the indices."""
    every = tuple(range(x.dim()))
    return Example(lambda: twin, lambda: (x,), x.dim(), (every,), ((*every, None),))


described = {"Embedding": embedding}
SAMPLES = {"Embedding": 4}


def rows() -> dict[str, Row]:
    """In support/misuses/layers.py."""
    whole = Wrong(-1, RuntimeError, "negative")
    number = [Wrong(v, TypeError, "norm") for v in ("a", [1.0])]
    padding = [*(Wrong(v, ValueError, "within") for v in (4, -5)), Wrong(0.5, TypeError, "padding_idx")]
    wrong = {
        "P_x": not_a_partition(),
        "num_embeddings": [*not_an_int("num_embeddings"), whole],
        "embedding_dim": [*not_an_int("embedding_dim"), whole],
        "padding_idx": padding,
        "max_norm": number,
        "norm_type": [*number, Wrong(None, TypeError, "norm_type")],
        "scale_grad_by_freq": [Wrong(v, TypeError, "scale_grad_by_freq") for v in (None, 1)],
        "sparse": [Wrong(v, TypeError, "sparse") for v in (None, 1)],
        "device": not_a_device(),
        "dtype": not_a_dtype(),
    }
    other = {
        "num_embeddings": 5,
        "embedding_dim": 2,
        "padding_idx": 1,
        "max_norm": 1.0,
        "norm_type": 1.0,
        "scale_grad_by_freq": True,
        "dtype": torch.float64,
    }
    return {
        "nn.DistributedEmbeddingBag": Row(
            dnn.DistributedEmbeddingBag,
            lambda P: {"P_x": grid_of(P, 1), "num_embeddings": 4, "embedding_dim": 3},
            {
                **wrong,
                "mode": [Wrong(v, ValueError, "mode") for v in ("min", None, 1)],
                "include_last_offset": [Wrong(v, TypeError, "include_last_offset") for v in (None, 1)],
                "P_w": not_a_further_partition(),
            },
            {**other, "mode": "sum", "include_last_offset": True},
            free=("device", "sparse"),
        ),
        "nn.DistributedEmbedding": Row(
            dnn.DistributedEmbedding,
            lambda P: {"P_x": grid_of(P, 2), "num_embeddings": 4, "embedding_dim": 3},
            {**wrong, "P_w": not_a_further_partition()},
            other,
            free=("device", "sparse"),
        ),
    }
