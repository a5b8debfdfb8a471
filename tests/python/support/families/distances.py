"""Cosine similarities and pairwise distances."""

import torch

from support.families import Example
from support.misuses.table import Wrong
from support.tensors import values


def cosine(twin, x1, x2):
    """All dimensions in blocks, but for those in which an input is broadcast."""
    dim = twin.dim % x1.dim()
    cuts = tuple(tuple(d if x.shape[d] > 1 else None for d in range(x.dim())) for x in (x1, x2))
    result = tuple(d for d in range(x1.dim()) if d != dim)
    return Example(lambda: twin, lambda: (x1, x2), x1.dim(), cuts, (result,), first_of=(dim,))


def distance(twin, x1, x2):
    """All dimensions in blocks."""
    last = x1.dim() - 1
    cut = tuple(range(last + 1))
    result = (*cut[:-1], *([None] if twin.keepdim else []))
    return Example(lambda: twin, lambda: (x1, x2), last + 1, (cut, cut), (result,), first_of=(last,))


def pair(*shapes):
    """Two tensors without equal differences."""
    drawn = []
    for seed, shape in enumerate(shapes):
        steps = torch.linspace(0.1, 0.8, torch.Size(shape).numel(), dtype=torch.float64).view(shape)
        drawn.append(values(shape, seed=seed) + (2 - seed) * steps)
    return drawn


EXAMPLES = {
    "CosineSimilarity": cosine(torch.nn.CosineSimilarity(), *pair((3, 4), (3, 4))),
    "CosineSimilarity of each with each": cosine(
        torch.nn.CosineSimilarity(dim=-1, eps=1e-3), *pair((3, 1, 4), (1, 2, 4))
    ),
    "CosineSimilarity of a vector": cosine(torch.nn.CosineSimilarity(0), *pair((5,), (5,))),
    "CosineSimilarity of short vectors": cosine(torch.nn.CosineSimilarity(0, eps=30.0), *pair((4, 2), (4, 2))),
    "PairwiseDistance": distance(torch.nn.PairwiseDistance(), *pair((3, 4), (3, 4))),
    "PairwiseDistance of vectors": distance(torch.nn.PairwiseDistance(keepdim=True), *pair((5,), (5,))),
    **{
        f"PairwiseDistance p={p}": distance(torch.nn.PairwiseDistance(p, keepdim=p > 2), *pair((2, 3, 4), (2, 3, 4)))
        for p in (0.0, 1.0, 3.0, -2.0, float("inf"))
    },
}
MISUSES = {"DistributedCosineSimilarity": {"dim": [Wrong(2, ValueError, "dimension 2")]}}
OTHER = {"DistributedCosineSimilarity": {"dim": 0}}
