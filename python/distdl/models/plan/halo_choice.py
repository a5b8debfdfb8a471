"""Choose which operations exchange their halos at once."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from distdl.models.capture.node_work import NodeWork, works_of
from distdl.models.capture.recording import Node
from distdl.models.capture.unrecorded import autocast
from distdl.models.plan.costs import seconds_of
from distdl.models.plan.machine import Machine
from distdl.models.plan.measurement import measure
from distdl.models.plan.overlaps import Changes, HaloChains
from distdl.models.plan.planning import Plan
from distdl.partitions.grid import Grid

HALOS = ("auto", "each", "chain")
_LONGEST_CHAIN = 16  # steps of a chain that exchange halos
_MUCH_FASTER = 0.8  # of the time of an exchange in each step: estimates are not exact


def choose_halos(plan: Plan, halos: str, ranks: Grid, device: torch.device) -> None:
    """Let steps exchange their halos at once, as an option says. Collective over the ranks that construct the model.

    Args:
        halos: "each": never; "chain": wherever they can; "auto": between hosts, where it is faster by estimate.
    """
    if halos == "chain":
        chain_all(plan)
    if halos != "auto" or not ranks.host_exchange().spans_hosts:
        return
    chains = HaloChains(plan)
    if len(chains.exchanging) > 1:
        x = plan.steps[chains.exchanging[0]].node.inputs[0]
        works = works_of(plan.recording, next(filter(None, autocast().values()), None))
        chain_where_faster(plan, chains, measure(ranks, x.dtype, device), works)


def chain_all(plan: Plan) -> None:
    """Let steps exchange halos at once wherever they can."""
    _change(plan, HaloChains(plan).chained(0, len(plan.steps) - 1))


def chain_where_faster(plan: Plan, chains: HaloChains, machine: Machine, works: Mapping[Node, NodeWork]) -> None:
    """Let steps exchange halos at once where this is faster by estimate.

    Args:
        chains: of this plan.
        works: the work of each node.
    """
    places, at = chains.exchanging, 0
    while at < len(places):
        best: Changes = {}, {}
        longest, saved, before = at, 0.0, -math.inf
        for end in range(at + 1, min(at + _LONGEST_CHAIN, len(places))):
            changes = chains.chained(places[at], places[end])
            each = seconds_of([plan.steps[place] for place in changes[0]], plan, machine, works)
            once = seconds_of([*changes[0].values()], plan, machine, works)
            if once < _MUCH_FASTER * each and each - once > saved:
                best, longest, saved = changes, end, each - once
            if each - once < before:  # overlaps grow with the length
                break
            before = each - once
        _change(plan, best)
        at = longest + 1


def _change(plan: Plan, changes: Changes) -> None:
    changed, overlaps = changes
    for place, step in changed.items():
        plan.steps[place] = step
    plan.overlaps |= overlaps
