"""Small changes of a source."""

import ast
import copy
import functools
import re

OPERATORS = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "+": "-", "-": "+", "*": "+", "/": "*",
             "%": "/", "&&": "||", "||": "&&", "|": "&"}  # fmt: skip
# In an expression of C++, which clang-format has laid out: an operator, a bound, a rank, an argument.
CORE = [
    (r" (<=?|>=?|==|!=|[-+*/%|]|&&|\|\|) ", lambda match: f" {OPERATORS[match[1]]} "),
    (r"!(?=[\w(])", lambda match: "!!"),
    (r"\b[01]\b(?![.\w])", lambda match: str(1 - int(match[0]))),
    (r"(?<![\w.>])(rank|root|peer|source|to|other|first|last)\b(?!\(|\.|->|::)", lambda match: f"({match[0]} ^ 1)"),
    (r"[\w.>-]*\brank\(\)", lambda match: f"({match[0]} ^ 1)"),
    (r"\((\w+), (\w+)\)", lambda match: f"({match[2]}, {match[1]})"),
    (r", [\w.]+\)", lambda match: ")"),
    (r"\b(min|max)\(", lambda match: {"min": "max(", "max": "min("}[match[1]]),
]
STATEMENT = re.compile(r"(\s+)((?:[\w:.>\[\]*()-]+\(.*\)|throw .*|[\w.>\[\]-]+ [-+*/|]?= .*|(?:\+\+|--)\w+));$")
EXPRESSION = re.compile(
    r"(\s+(?:return |(?:if|while) \(|(?:const |auto |[\w:]+ )*[\w.>\[\]-]+ [-+*/|]?= |for \([^;]*; ))(.*)$"
)


def expression_in(line):
    """Where the expression of a line begins and ends. Texts are blank in it."""
    match = EXPRESSION.match(line)
    if not match or "constexpr" in line or "static " in line or "{}" in line:
        return None
    begin, opened = match.start(2), 0
    in_parentheses = re.match(r"\s+(if|while) \(", line)
    for end in range(begin, len(line)):
        opened += (line[end] == "(") - (line[end] == ")")
        if (line[end] == ";" and not in_parentheses) or opened < 0:
            return begin, end
    return None


def core_changes(source):
    """(line, last line, description, a function from the change's number to the new line), of complete lines of C++."""
    before = ""
    for number, line in enumerate(source.splitlines(), 1):
        code = re.sub(r"\s*//.*", "", line)
        complete, before = re.search(r"(^|[;{}:])$", before.strip()), code
        if not complete or code.lstrip().startswith(("#", "case", "using", "static_assert", "template")):
            continue
        if match := STATEMENT.match(code):
            yield number, number, f"removed {match[2]}", lambda i, m=match: f"{m[1]}if (!M({i})) {m[2]};"
        blank = re.sub(r'"[^"]*"|\'[^\']*\'', lambda text: "$" * len(text[0]), code)
        if not (part := expression_in(blank)):
            continue
        begin, end = part
        for pattern, replace in CORE:
            for match in re.finditer(pattern, blank[begin:end]):
                old, at = code[begin:end], slice(*match.span())
                new = old[: at.start] + replace(match) + old[at.stop :]
                where = "" if len(old) > 15 else f" in {code.strip()}"
                yield (
                    number,
                    number,
                    f"{old} -> {new}{where}",
                    lambda i, c=code, b=begin, e=end, n=new: f"{c[:b]}(M({i}) ? ({n}) : ({c[b:e]})){c[e:]}",
                )


PAIRS = "Lt LtE, Gt GtE, Eq NotEq, Is IsNot, In NotIn, Add Sub, And Or"  # codespell:ignore
SWAPS = {getattr(ast, a): getattr(ast, b) for pair in PAIRS.split(", ") for a, b in (pair.split(), pair.split()[::-1])}
SWAPS |= {ast.Mult: ast.Add, ast.FloorDiv: ast.Mult, ast.Mod: ast.FloorDiv, ast.BitOr: ast.BitAnd}


def variants(node):
    """Texts that may stand in place of a node."""
    text = ast.unparse
    match node:
        case ast.Compare(left, [operator], right):
            yield text(ast.Compare(left, [SWAPS[type(operator)]()], right))
        case ast.BinOp(left, operator, right) if type(operator) in SWAPS:
            yield text(ast.BinOp(left, SWAPS[type(operator)](), right))
        case ast.BoolOp(operator, values):
            yield text(ast.BoolOp(SWAPS[type(operator)](), values))
        case ast.UnaryOp(ast.Not() | ast.USub(), operand):
            yield text(operand)
        case ast.Call(function, arguments, keywords) if len(arguments) + len(keywords) > 1 and "strict=" not in text(
            node
        ):
            kept = (arguments, keywords[:-1]) if keywords else (arguments[:-1], [])
            yield text(ast.Call(function, *kept))
        case ast.Constant(bool() | int() as value):
            yield repr(not value if isinstance(value, bool) else 1 - value if value in (0, 1) else value + 1)
        case ast.Name("rank" | "root", ast.Load()) | ast.Attribute(_, "rank", ast.Load()):
            yield f"{text(node)} ^ 1"
        case ast.Expr(ast.Call()) | ast.Raise() | ast.AugAssign() | ast.Continue() | ast.Assign([ast.Attribute()]):
            yield "pass"


def switched(tree, node, text, i):
    """The source of a tree in which a node asks whether change i is tried."""
    old, new, asks = copy.copy(node), ast.parse(text).body[0], ast.parse(f"M({i})", mode="eval").body
    changed = ast.If(asks, [new], [old]) if isinstance(node, ast.stmt) else ast.IfExp(asks, new.value, old)
    node.__class__, node.__dict__ = type(changed), vars(changed)
    return ast.unparse(tree)


def package_changes(source):
    """(line, last line, description, a function from the number to the new source), of Python's functions."""
    lines, tree = source.encode().splitlines(), ast.parse(source)

    def visit(node, line, inside, is_useless=False):
        line = node.lineno if isinstance(node, ast.stmt) else line
        for text in variants(node) if inside else ():
            old = ast.unparse(node)
            where = "" if len(old) > 15 else f" in {lines[node.lineno - 1].decode().strip()}"
            description = None if is_useless else f"{old} -> {text}{where}"
            yield line, node.end_lineno, description, functools.partial(switched, tree, node, text)
        if isinstance(node, ast.Raise | ast.JoinedStr | ast.arguments | ast.AnnAssign):
            return
        inside = inside or isinstance(node, ast.FunctionDef)
        # Whether lengths are compared once more, and which line a warning names.
        is_useless = isinstance(node, ast.keyword) and node.arg in ("strict", "stacklevel")
        for name, value in ast.iter_fields(node):
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST) and name not in ("annotation", "returns", "decorator_list", "pattern"):
                    yield from visit(child, line, inside, is_useless)

    after = [i for i, node in enumerate(tree.body[:9]) if i == 0 or getattr(node, "module", "") == "__future__"][-1]
    yield from visit(tree, 0, False)
    tree.body.insert(after + 1, ast.parse("from switched import M").body[0])
