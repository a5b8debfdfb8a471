"""Layers and models on the device, beside their twins on the CPU."""

import copy
import os
import random

import pytest
import torch

import distdl
from support.blocks import grid
from support.distributed import assert_none, noise, off, step
from support.families import EXAMPLES, splits
from support.models import Dense, Line, Residual, Tokens
from support.ranks import job
from support.sequential import assert_equals_sequential
from support.training import KINDS, Twins


@pytest.mark.parametrize("example", EXAMPLES.values(), ids=EXAMPLES)
def test_equals_the_twin(P_world, example):
    draw = random.Random(f"{os.environ.get('DISTDL_SEED')} {example.cuts}")
    layout = draw.choice(["owner", "sharded", "replicated"])
    assert_equals_sequential(example, grid(P_world, draw.choice(splits(example))), layout=layout, device="lagging")
