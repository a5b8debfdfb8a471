"""A hint for arguments that are wrong here, and right in programs written for DistDL."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence, Sized

from distdl.classic import mode

Arguments = Mapping[str, object]

_FURTHER = {"buffer_manager", "collect_state", "scale_backward", "auto_clear_buffer"}
_OF_LINEAR = {"P_w", "P_y", "P_store_weight", "P_apply_weight", "num_heads", "num_heads_kv", "num_vars", "geglu"}

_RULES: tuple[tuple[str, Callable[[Arguments], bool]], ...] = (
    ("", lambda arguments: not _FURTHER.isdisjoint(arguments) or any(map(_is_manager, arguments.values()))),
    ("Conv", lambda arguments: isinstance(arguments.get("dilation"), str) or arguments.get("in_channels", 0) is None),
    ("Linear", lambda arguments: not _OF_LINEAR.isdisjoint(arguments)),
    ("AvgPool", lambda arguments: "dilation" in arguments or _is_dilation(arguments.get("ceil_mode"))),
    (
        "Upsample",
        lambda arguments: arguments.get("mode") == "linear" or _is_shape(arguments) or _has_nothing(arguments),
    ),
    ("Upsample", lambda arguments: arguments.get("mode") == "nearest" and arguments.get("align_corners") is False),
    ("Loss", lambda arguments: any(isinstance(arguments.get(name), str) for name in ("weight", "log_input"))),
    ("LayerNorm", lambda arguments: isinstance(arguments.get("eps"), bool)),
)
_MOST_POSITIONS = {"Repartition": 3, "HaloExchange": 4}
"""The numbers of positions of operators after which a buffer manager, or None, may follow."""


def _is_manager(value: object) -> bool:
    return type(value).__name__ == "MPIBufferManager"


def _is_dilation(value: object) -> bool:
    return value is not None and not isinstance(value, bool)


def _is_shape(arguments: Arguments) -> bool:
    values = (arguments.get("size"), arguments.get("scale_factor"))
    return any(isinstance(value, Sized) and len(value) > 2 for value in values)


def _has_nothing(arguments: Arguments) -> bool:
    return arguments.get("size", 0) is None and arguments.get("scale_factor", 0) is None


def hint(what: str, arguments: Arguments, positions: Sequence[object] = ()) -> str:
    """The command that runs such a program, if the arguments look like those of one."""
    if mode.is_on():
        return ""
    fits = any(re.search(name, what) and rule(arguments) for name, rule in _RULES)
    last = positions[-1] if len(positions) > _MOST_POSITIONS.get(what, len(positions)) else 0
    if not fits and last is not None and not any(map(_is_manager, positions)):
        return ""
    return ". A program written for DistDL runs by `python -m distdl.classic`"
