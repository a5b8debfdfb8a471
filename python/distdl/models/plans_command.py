"""The command ``python -m distdl.plans``."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from distdl.models.plan.machine import Machine
from distdl.models.plan.measurement import measure
from distdl.models.plan.training import OPTIMIZERS
from distdl.models.proposals import plans
from distdl.parameters.layout import LAYOUT_KINDS, OF_MODELS, parameter_layout
from distdl.partitions.grid import Grid

_FIGURES = ("flops", "memory_bandwidth", "bandwidth", "latency", "node_bandwidth", "node_latency")


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the best partition for each number of ranks, and from how many ranks on the model fits; draw a picture.

    Raises:
        SystemExit: if the arguments are not as described, or the model cannot be planned.
    """
    options = _parser().parse_args(arguments)
    try:
        model = _model_of(options.model)
        machine = _machine_of(options)
        cast = torch.autocast("cpu", getattr(torch, options.autocast or "bfloat16"), enabled=bool(options.autocast))
        inputs = [_input_of(text) for text in options.shape]
        with parameter_layout(options.layout), cast:
            proposals = plans(model, inputs, ranks=options.ranks, machine=machine, optimizer=options.optimizer)
    except (ImportError, AttributeError, TypeError, ValueError, NotImplementedError, RuntimeError) as error:
        raise SystemExit(f"python -m distdl.plans: {error}") from error
    print(proposals.table_by_ranks(), proposals.answer(), sep="\n")
    if options.picture:
        proposals.picture(options.picture)
        print(f"picture: {options.picture}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m distdl.plans", description="Say on how many ranks the training of a model fits."
    )
    parser.add_argument("model", help="program:make_model: a module or file, and a function or class without arguments")
    shape = "of the whole input, such as 1,3,512,512 or 8,512:int64; repeated for several inputs"
    parser.add_argument("--shape", action="append", required=True, metavar="N,N,...", help=shape)
    parser.add_argument("--ranks", type=int, required=True, help="the largest number of ranks; its divisors are tried")
    parser.add_argument("--memory", help="of a rank, such as 64GiB (default: this machine's, for each core)")
    parser.add_argument("--ranks-per-node", type=int, help="(default: the cores of this machine)")
    for name in _FIGURES:
        text = "a second" if "latency" not in name else "in seconds"
        parser.add_argument(f"--{name.replace('_', '-')}", type=float, help=f"{text} (default: measured here)")
    parser.add_argument("--optimizer", default="adam", choices=OPTIMIZERS)
    parser.add_argument("--layout", default=OF_MODELS, choices=LAYOUT_KINDS, help="of the parameters")
    parser.add_argument("--autocast", choices=("bfloat16", "float16"))
    parser.add_argument("--picture", default="plans.svg", metavar="FILE", help='(default: %(default)s; "" for none)')
    return parser


def _model_of(text: str) -> torch.nn.Module:
    """The model that a function of a program makes, without values if the function allows it."""
    program, _, name = text.partition(":")
    path = Path(program)
    sys.path.insert(0, str(path.parent.resolve()))
    make = getattr(importlib.import_module(path.stem if path.suffix == ".py" else program), name or "make_model")
    if isinstance(make, torch.nn.Module):
        return make
    with contextlib.suppress(NotImplementedError, RuntimeError), torch.device("meta"):
        made: torch.nn.Module = make()
        return made
    whole: torch.nn.Module = make()
    return whole


def _machine_of(options: argparse.Namespace) -> Machine:
    figures = {name: getattr(options, name) for name in ("memory", "ranks_per_node", *_FIGURES)}
    machine = measure(Grid.alone(), torch.float32, torch.device("cpu"))
    changed = {name: value for name, value in figures.items() if value is not None}
    if "flops" in changed:  # another machine: speeds that are measured here do not count
        machine = replace(machine, speeds={})
    return replace(machine, **changed)


def _input_of(text: str) -> object:
    shape, _, dtype = text.partition(":")
    extents = [int(n) for n in shape.replace("x", ",").split(",")]
    return torch.empty(extents, dtype=getattr(torch, dtype), device="meta") if dtype else tuple(extents)
