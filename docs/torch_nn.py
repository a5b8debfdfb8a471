"""The table of torch_nn.rst: what becomes of each class of torch.nn on blocks, from the package.

`write(path)` writes it, and the page includes it. tests/python/nn/test_coverage.py checks what it says.
"""

import inspect
from dataclasses import dataclass
from pathlib import Path

import torch

from distdl.nn import SEQUENTIAL
from distdl.nn.base.split_rules import REFUSED, SPLIT_RULES, rule_of

HEAD = """\
.. list-table::
   :header-rows: 1

   * - ``torch.nn``
     - On blocks
     - Unless P_x splits
"""

CONTAINERS = {
    "Module": "a module of your own goes into Local, if it works on each block by itself",
    "Container": "as Module, which is its newer name",
    "Sequential": "holds layers, which count one by one",
    "ModuleList": "holds layers, which count one by one",
    "ModuleDict": "holds layers, which count one by one",
    "ParameterList": "its parameters are shared by the ranks where the module that has it is in Local",
    "ParameterDict": "its parameters are shared by the ranks where the module that has it is in Local",
}
"""Classes that hold layers or parameters, and compute nothing."""


@dataclass(frozen=True)
class Verdict:
    """Support for a class of torch.nn: "ours", "as it is", "in Local" or "refused", with an explanation."""

    kind: str
    text: str


def classes() -> list[type[torch.nn.Module]]:
    """All classes of modules in torch.nn, by name."""
    modules = (kind for _, kind in sorted(vars(torch.nn).items()) if inspect.isclass(kind))
    return [kind for kind in modules if issubclass(kind, torch.nn.Module)]


def verdict(kind: type[torch.nn.Module]) -> Verdict | None:
    """The support for a class of torch.nn; None if nothing is known of it."""
    name = kind.__name__
    if kind in SEQUENTIAL:
        return Verdict("ours", SEQUENTIAL[kind].__name__)
    if name in SPLIT_RULES:
        return Verdict("in Local" if SPLIT_RULES[name].has_parameters else "as it is", "")
    if name in CONTAINERS:
        return Verdict("as it is", f": {CONTAINERS[name]}")
    return Verdict("refused", REFUSED[name]) if name in REFUSED else None


def row(kind: type[torch.nn.Module]) -> str:
    """The line of a class."""
    support, rule = verdict(kind), rule_of(kind)
    assert support is not None, kind
    on_blocks = {
        "ours": f":class:`~distdl.nn.{support.text}`",
        "as it is": f"as it is{support.text}",
        "in Local": "in :class:`~distdl.nn.Local`",
        "refused": f"no: {support.text}",
    }[support.kind]
    condition = "–" if rule is None else rule.condition or "(any dimension may be split)"
    return f"   * - {kind.__name__}\n     - {on_blocks}\n     - {condition}\n"


def write(path: Path) -> None:
    path.write_text(HEAD + "".join(map(row, classes())))
