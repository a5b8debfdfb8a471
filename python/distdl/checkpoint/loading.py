"""Loading a model, an optimizer and further values of a run."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from distdl.checkpoint.header import read_header
from distdl.checkpoint.json_values import members_of
from distdl.checkpoint.load_plan import LoadPlan, Rename
from distdl.checkpoint.model_state import load_optimizer, loadable_state, parameter_names
from distdl.checkpoint.reading import read_values
from distdl.checkpoint.saving import ranks_that_save, summary_of
from distdl.modules.layout_lookup import model_call
from distdl.modules.layouts import check_module, check_undeclared, layouts_of
from distdl.modules.state import set_extra_states
from distdl.partitions.comparison import agreed
from distdl.partitions.construction import constructing


@torch.no_grad()
@model_call
def load(
    path: str | os.PathLike[str],
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    strict: bool = True,
    rename: Rename | None = None,
) -> dict[str, object]:
    """Load a file of :func:`distdl.save`, on any number of ranks, partition and layout of parameters.

    Files of ``safetensors.torch.save_file(model.state_dict(), path)`` are loaded as well.

    Args:
        path: the file, which all ranks see.
        model: any model.
        optimizer: an optimizer of the saved kind, to load its states too.
        strict: whether the file must have exactly the model's tensors; otherwise common tensors and states are loaded.
        rename: turns names in the file into names in the model: a function, which returns None to leave out a tensor,
            or a mapping of names or of prefixes before a dot: ``{"net": "body.net"}``.

    Returns:
        The ``values`` that were saved, on every rank.

    Raises:
        OSError: on all ranks, if any of them cannot read the file, or it is not a regular file.
        RuntimeError: on all ranks, if tensors are missing or unknown, shapes differ, or complex numbers would lose
            their imaginary parts. Nothing is loaded then.
        ValueError: on all ranks, if the file is not a safetensors file, is damaged (some tensors may be
            loaded then), or changes while it is read; if the ranks' arguments differ; or if the model has a tensor in
            blocks that is not declared.

    Collective over the communicator that the partitions come from. If no parameter is distributed, each calling rank
    loads its model. Nothing in the file is executed. A rank needs its blocks and less than 64 MiB.
    """
    layouts = layouts_of(model) if isinstance(model, torch.nn.Module) else {}
    all_ranks = ranks_that_save(model, optimizer)
    if not all_ranks.known:
        return {}
    compared: dict[str, object] = {"path": path, "strict": strict, "optimizer": type(optimizer).__name__}
    with constructing("load", {"ranks": all_ranks}, compared):
        check_module("load", model)
        compared["model"] = summary_of(model, layouts)
        file_path = Path(os.fsdecode(path))
        groups = [] if optimizer is None else parameter_names(optimizer, model)
    check_undeclared("load", model, all_ranks, layouts)
    header = read_header(file_path, all_ranks)
    plan = LoadPlan(header, model, layouts, all_ranks, rename)
    optimizer_state: dict[str, object] = {}
    with constructing("load", {"ranks": all_ranks}, {}):
        plan.match_model(strict)
        if optimizer is not None:
            plan.match_optimizer(groups, strict)
        # The header is checked completely before values are read.
        if optimizer is not None and "optimizer" in header.metadata:
            metadata = members_of(header.metadata["optimizer"])
            optimizer_state = loadable_state(optimizer, groups, metadata, plan.states, plan.renamed)
        values = plan.match_more()
        extra = plan.match_extra(values, strict)
    read_values(header, plan, all_ranks)
    if optimizer is not None and optimizer_state:
        load_optimizer(optimizer, groups, optimizer_state, plan.dtypes)
    if extra:
        with agreed("load", all_ranks, lambda: ""):
            set_extra_states(model, extra)
    return values
