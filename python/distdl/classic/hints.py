"""Which wrong arguments of our layers are right in programs written for DistDL."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from distdl.classic import mode

Given = Mapping[str, object]

_RULES: tuple[tuple[str, Callable[[Given], bool]], ...] = (
    ("", lambda given: "buffer_manager" in given),
    ("Conv", lambda given: isinstance(given.get("dilation"), str) or given.get("in_channels", 0) is None),
    ("Linear", lambda given: "P_w" in given),
    ("AvgPool", lambda given: "dilation" in given),
    ("Upsample", lambda given: given.get("mode") == "linear" or _is_shape(given) or _has_nothing(given)),
    ("Loss", lambda given: isinstance(given.get("weight"), str)),
    ("LayerNorm", lambda given: isinstance(given.get("eps"), bool)),
)


def _is_shape(given: Given) -> bool:
    return any(isinstance(given.get(name), Sequence) and len(given[name]) > 2 for name in ("size", "scale_factor"))  # type: ignore[arg-type]


def _has_nothing(given: Given) -> bool:
    return given.get("size", 0) is None and given.get("scale_factor", 0) is None


def hint(what: str, given: Given) -> str:
    """The command that runs such a program, if the arguments look like those of one."""
    if mode.is_on() or not any(re.search(name, what) and rule(given) for name, rule in _RULES):
        return ""
    return ". A program written for DistDL runs by `python -m distdl.classic`"
