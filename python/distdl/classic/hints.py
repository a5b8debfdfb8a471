"""Which wrong arguments of our layers are right in programs written for DistDL."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from distdl.classic import mode

Given = Mapping[str, object]

_FURTHER = {"buffer_manager", "collect_state", "scale_backward", "auto_clear_buffer"}
_OF_LINEAR = {"P_w", "P_y", "P_store_weight", "P_apply_weight", "num_heads", "num_heads_kv", "num_vars", "geglu"}

_RULES: tuple[tuple[str, Callable[[Given], bool]], ...] = (
    ("", lambda given: not _FURTHER.isdisjoint(given) or any(map(_is_manager, given.values()))),
    ("Conv", lambda given: isinstance(given.get("dilation"), str) or given.get("in_channels", 0) is None),
    ("Linear", lambda given: not _OF_LINEAR.isdisjoint(given)),
    ("AvgPool", lambda given: "dilation" in given or _is_dilation(given.get("ceil_mode"))),
    ("Upsample", lambda given: given.get("mode") == "linear" or _is_shape(given) or _has_nothing(given)),
    ("Upsample", lambda given: given.get("mode") == "nearest" and given.get("align_corners") is False),
    ("Loss", lambda given: any(isinstance(given.get(name), str) for name in ("weight", "log_input"))),
    ("LayerNorm", lambda given: isinstance(given.get("eps"), bool)),
)
_MOST_POSITIONS = {"Repartition": 3, "HaloExchange": 4}
"""Of operators behind whose last position a buffer manager, or None, may stand."""


def _is_manager(given: object) -> bool:
    return type(given).__name__ == "MPIBufferManager"


def _is_dilation(given: object) -> bool:
    return given is not None and not isinstance(given, bool)


def _is_shape(given: Given) -> bool:
    return any(hasattr(given.get(name), "__len__") and len(given[name]) > 2 for name in ("size", "scale_factor"))  # type: ignore[arg-type]


def _has_nothing(given: Given) -> bool:
    return given.get("size", 0) is None and given.get("scale_factor", 0) is None


def hint(what: str, given: Given, positions: Sequence[object] = ()) -> str:
    """The command that runs such a program, if the arguments look like those of one."""
    if mode.is_on():
        return ""
    fits = any(re.search(name, what) and rule(given) for name, rule in _RULES)
    last = positions[-1] if len(positions) > _MOST_POSITIONS.get(what, len(positions)) else 0
    if not fits and last is not None and not any(map(_is_manager, positions)):
        return ""
    return ". A program written for DistDL runs by `python -m distdl.classic`"
