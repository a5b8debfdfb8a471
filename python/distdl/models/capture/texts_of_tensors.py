"""Texts of tensors, such as ``f"{x.max():.3f}"`` and ``print(x)``, in a model that is recorded.

A text of unknown values is a look at them. But models write messages that hardly any call needs, so a message is no
look where it need not be: see :func:`use_of_text`.
"""

from __future__ import annotations

import ast
import enum
import functools
import linecache
import logging
import re
import reprlib
import sys
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from types import FrameType

import torch
import torch.overrides

_FORMATTING = (
    str(Path(torch.__file__).parent / "_tensor.py"), torch.overrides.__file__, str(Path(__file__).parents[2]),
    reprlib.__file__, "<",
)  # fmt: skip
"""The files of functions that give texts, or ask for them for others."""
_MESSAGES = re.compile("assert|check|warn|debug|info|error|critical|exception|^log$")
"""A part of the names of functions that take messages."""


class Use(enum.Enum):
    """Ways of a model to use a text.

    Attributes:
        MESSAGE: passes it to a function that checks, warns or logs, and perhaps drops it.
        RAISED: raises or logs it, so that it is read, but decides nothing.
        ANY: perhaps prints it, or decides by it.
    """

    MESSAGE = 0
    RAISED = 1
    ANY = 2


def _representation(tensor: torch.Tensor) -> str:
    return repr(tensor.detach().cpu())


def _formatted(tensor: torch.Tensor, specification: str) -> str:
    return format(tensor.detach().cpu(), specification)


TEXTS: dict[str, Callable[..., object]] = {"__repr__": _representation, "__format__": _formatted}
"""The functions that give texts. They are the same on all ranks, so without devices and derivatives."""


def text_without_values(tensor: torch.Tensor) -> str:
    """A text in place of unknown values."""
    return f"<a tensor of shape {list(tensor.shape)}, whose values are not known while the model is recorded>"


def use_of_text() -> Use:
    """The use of the text of a tensor that the model asks for now."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_FORMATTING):
        frame = frame.f_back
    if frame is None:
        return Use.ANY
    if frame.f_code.co_filename == logging.__file__:  # which asks for texts that it prints
        return Use.RAISED
    inner: ast.AST | None = None
    for node in _around(frame):
        if isinstance(node, ast.Raise) or (isinstance(node, ast.Assert) and inner is node.msg):
            return Use.RAISED
        if isinstance(node, ast.Call) and _MESSAGES.search(_name(node.func)):
            return Use.MESSAGE
        if isinstance(node, ast.Compare | ast.stmt):
            break
        inner = node
    return Use.ANY


def _name(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _around(frame: FrameType) -> list[ast.AST]:
    """The expressions and statements that a frame is in, those within others first."""
    if sys.version_info < (3, 11):
        return _around_line(frame)
    line, last_line, column, last_column = next(islice(frame.f_code.co_positions(), frame.f_lasti // 2, None))
    if line is None or last_line is None or column is None or last_column is None:
        return []
    around: list[ast.AST] = []
    nodes: list[ast.AST] = [_parsed(frame.f_code.co_filename)]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.expr | ast.stmt):
            end = node.end_lineno or node.lineno, node.end_col_offset or 0
            if not (node.lineno, node.col_offset) <= (line, column) <= (last_line, last_column) <= end:
                continue
            around.insert(0, node)
        nodes += ast.iter_child_nodes(node)
    return around


def _around_line(frame: FrameType) -> list[ast.AST]:
    """The statement that a frame is in, and the expression in it that may ask for a text: Python 3.10 knows no more."""
    statements = [node for node in ast.walk(_parsed(frame.f_code.co_filename)) if isinstance(node, ast.stmt)]
    around = [node for node in statements if node.lineno <= frame.f_lineno <= (node.end_lineno or node.lineno)]
    if not around:
        return []
    inner = max(around, key=lambda node: (node.lineno, -(node.end_lineno or node.lineno)))
    if isinstance(inner, ast.Assert):
        names = {getattr(node, "id", type(node).__name__) for node in ast.walk(inner.test)}
        is_test = not names.isdisjoint({"JoinedStr", "str", "repr", "format"})
        return [inner.test if is_test or inner.msg is None else inner.msg, inner]
    return [inner.value, inner] if isinstance(inner, ast.Expr) else [inner]


@functools.lru_cache(maxsize=8)
def _parsed(file: str) -> ast.AST:
    try:
        return ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return ast.Module([], [])
