"""Every layer that programs written for DistDL know, on given ranks of a job: some of the input, others of the result.

Each of them is a function of the partition of all ranks, the ranks of the input and those of the result. It returns the
layer, its sequential twin, the whole input, and the partitions of input and result.
"""

import functools

import torch

import distdl.nn as dnn
from support.classic.layers import SequentialExperts
from support.ranks import job
from support.tensors import values


def on(P_world, ranks, dim, d=-1):
    """These ranks, negative ones counted from the last rank, side by side in dimension d."""
    ranks = sorted({rank % job.size for rank in ranks})
    shape = [1] * dim
    shape[d] = len(ranks)
    return P_world.create_partition_inclusive(ranks).create_cartesian_topology_partition(shape)


def linear(P_world, ranks_x, ranks_y):
    """Of as many rows and columns as there are ranks for; at most those of the job."""
    P_x, P_y = on(P_world, ranks_x, 2), on(P_world, ranks_y, 2)
    if P_x.size * P_y.size > job.size:
        P_y = on(P_world, ranks_y[:1], 2)
    P_w = P_world.create_partition_inclusive(range(P_x.size * P_y.size))
    P_w = P_w.create_cartesian_topology_partition([P_y.size, P_x.size])
    return dnn.DistributedLinear(P_x, P_y, P_w, 4, 3), torch.nn.Linear(4, 3), values([2, 4]), P_x, P_y


def convolution(kind, P_world, ranks_x, ranks_y):
    """Rank 0 computes, or in the general form as many ranks as there are blocks of space."""
    number = len({rank % job.size for rank in ranks_x}) if kind == "General" else 1
    P_x, P_y = (on(P_world, ranks[:number], 3) for ranks in (ranks_x, ranks_y))
    P_w = P_world.create_partition_inclusive(range(number)).create_cartesian_topology_partition([1, 1, 1, number])
    layer = getattr(dnn, f"Distributed{kind}Conv1d")(P_x, P_y, P_w, 2, 3, 3)
    return layer, torch.nn.Conv1d(2, 3, 3), values([2, 2, 7]), P_x, P_y


def with_one(name, make, twin, shape, d, P_world, ranks_x, ranks_y):
    """A layer with one partition, split in dimension d: the result is on the ranks of the input."""
    P_x = on(P_world, ranks_x, len(shape), d)
    return make(getattr(dnn, name), P_x), twin(), values(shape), P_x, P_x


def with_two(name, other, twin, shape, P_world, ranks_x, ranks_y):
    """A layer of which the partition of the input, or of the result, may be another one, whose name is given."""
    P_x, P_y = on(P_world, ranks_x, len(shape)), on(P_world, ranks_y, len(shape))
    own, others = (P_y, {other: P_x}) if "AllGather" in name else (P_x, {other: P_y})
    sizes = (shape[0], 4, 3) if "Expert" in name else (4, 3)
    return getattr(dnn, name)(own, *sizes, **others), twin(), values(shape), P_x, P_y


def _one(name, make, twin, shape, d=-1):
    return {name: functools.partial(with_one, name, make, twin, shape, d)}


def _two(name, other, twin, shape):
    return {name: functools.partial(with_two, name, other, twin, shape)}


def _dense():
    return torch.nn.Linear(4, 3)


def _experts():
    return SequentialExperts(3, 4, 3)


_SPACE, _ROWS = [2, 2, 7], [2, 4]
_CONVOLUTIONS = {"Conv1d": torch.nn.Conv1d, "ConvTranspose1d": torch.nn.ConvTranspose1d}
_NORMS = {"LayerNorm": torch.nn.LayerNorm, "LayerNormZero": torch.nn.LayerNorm}
LAYERS = {
    "DistributedLinear": linear,
    **{f"Distributed{kind}Conv1d": functools.partial(convolution, kind) for kind in ("Channel", "General")},
    **_one("DistributedConv1d", lambda kind, P: kind(P, 2, 3, 3), functools.partial(torch.nn.Conv1d, 2, 3, 3), _SPACE),
    **{
        name: call
        for what, twin in _CONVOLUTIONS.items()
        for form, d in (("Feature", -1), ("ChannelAllGather", 1), ("ChannelReduceScatter", 1))
        for name, call in _one(
            f"Distributed{form}{what}", lambda kind, P: kind(P, 2, 3, 3), functools.partial(twin, 2, 3, 3), _SPACE, d
        ).items()
    },
    **_one("DistributedMaxPool1d", lambda kind, P: kind(P, 2), lambda: torch.nn.MaxPool1d(2, 1), _SPACE),
    **_one("DistributedAvgPool1d", lambda kind, P: kind(P, 2), lambda: torch.nn.AvgPool1d(2, 1), _SPACE),
    **_one(
        "DistributedUpsample",
        lambda kind, P: kind(P, scale_factor=2),
        lambda: torch.nn.Upsample(scale_factor=2, mode="linear"),
        _SPACE,
    ),
    **_one("DistributedBatchNorm", lambda kind, P: kind(P, 2), lambda: torch.nn.BatchNorm1d(2), _SPACE),
    **{
        name: call
        for norm, twin in _NORMS.items()
        for name, call in _one(
            f"Distributed{norm}", lambda kind, P: kind(P, 4), functools.partial(twin, 4), _ROWS
        ).items()
    },
    **_one("DistributedRMSNormZero", lambda kind, P: kind(P, 4), lambda: torch.nn.RMSNorm(4, 1e-5), _ROWS),
    **_two("DistributedLinearAllGather", "P_x", _dense, _ROWS),
    **_two("DistributedLinearAllGatherZero", "P_x", _dense, _ROWS),
    **_two("DistributedLinearReduceScatter", "P_y", _dense, _ROWS),
    **_two("DistributedLinearReduceScatterZero", "P_y", _dense, _ROWS),
    **_two("DistributedExpertAllGather", "P_expert_seq", _experts, [3, 2, 4]),
    **_two("DistributedExpertReduceScatter", "P_expert_seq", _experts, [3, 2, 4]),
}
"""By name, for one dimension of space."""

PRIMITIVES = ("AllGather", "AllSumReduce", "Broadcast", "HaloExchange", "ReduceScatter", "Repartition", "SumReduce")
LOSSES = ("L1Loss", "MSELoss", "PoissonNLLLoss", "BCELoss", "BCEWithLogitsLoss", "KLDivLoss")
EMBEDDINGS = ("DistributedEmbedding", "DistributedEmbeddingZero")
