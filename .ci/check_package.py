"""Checks python/distdl: nothing private of other modules, no circle, few Any, devices for tensors, clear docstrings.

Run by pre-commit from the root of the repository. Prints what is wrong, and exits with 1 if anything is.
"""

import ast
import graphlib
import sys
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path("python/distdl")
MOST_ANY = 60
CLASSIC = PACKAGE / "classic"
EXTENSION = "_core"
NO_SUBJECT = ("What", "That", "Those", "As", "Of", "One")
MAKE_TENSORS = {"arange", "as_tensor", "empty", "eye", "full", "linspace", "logspace", "ones", "rand", "randint"}
MAKE_TENSORS |= {"randn", "randperm", "scalar_tensor", "tensor", "tril_indices", "triu_indices", "zeros"}


def is_private(name: str) -> bool:
    """Whether only the module that defines this name should use it."""
    return name.startswith("_") and not name.startswith("__") and name != EXTENSION


def module_of(path: Path) -> str:
    """distdl.nn.local for python/distdl/nn/local.py; a package is named by its folder."""
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def defined(tree: ast.Module) -> set[str]:
    """What a module gives a name to: functions, classes, variables, and attributes that it assigns on self or cls."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and is_own(node.value):
            names.add(node.attr)
    return names


def is_own(value: ast.expr) -> bool:
    """Whether this is self, cls or super()."""
    if isinstance(value, ast.Call):
        return isinstance(value.func, ast.Name) and value.func.id == "super"
    return isinstance(value, ast.Name) and value.id in ("self", "cls")


def outside(tree: ast.Module) -> set[str]:
    """The names of other packages in a module, and of what it makes of them in its body: their privacy is not ours."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [(alias.name, alias.asname or alias.name.partition(".")[0]) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [(str(node.module), alias.asname or alias.name) for alias in node.names]
        else:
            continue
        found |= {name for module, name in names if module.partition(".")[0] != PACKAGE.name}
    for node in tree.body:
        if isinstance(node, ast.Assign) and root_of(node.value) in found:
            found |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return found


def root_of(value: ast.expr) -> str:
    """a for a.b.c and for a.b(c); nothing for what is computed otherwise."""
    while isinstance(value, ast.Attribute | ast.Call):
        value = value.value if isinstance(value, ast.Attribute) else value.func
    return value.id if isinstance(value, ast.Name) else ""


def private_accesses(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """(line, text) of each use of another module's private name."""
    own, others = defined(tree), outside(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_private(node.attr):
            if not is_own(node.value) and node.attr not in own and root_of(node) not in others:
                yield node.lineno, ast.unparse(node)
        elif isinstance(node, ast.ImportFrom) and str(node.module).partition(".")[0] == PACKAGE.name:
            for alias in node.names:
                if is_private(alias.name):
                    yield node.lineno, f"from {node.module} import {alias.name}"


def imports(node: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    """The imports in a module, those in functions too, but those that only type checkers see."""
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
        children: list[ast.AST] = [*node.orelse]
    else:
        children = [*ast.iter_child_nodes(node)]
    for child in children:
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child
        yield from imports(child)


def imported(tree: ast.Module, modules: set[str]) -> set[str]:
    """The modules of the package that a module imports. `from distdl import nn` means distdl.nn, not the package."""
    found = set()
    for node in imports(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif node.level:
            raise SystemExit(f"line {node.lineno}: a relative import; modules are imported by their whole name")
        else:
            whole = {f"{node.module}.{alias.name}" for alias in node.names if alias.name != EXTENSION}
            found |= {name if name in modules else str(node.module) for name in whole}
    return found & modules


def without_device(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """(line, text) of each tensor that is made on the device that torch takes by default.

    Ranks may have different ones, and a call that raises on one of them alone leaves the others waiting.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and root_of(node.func) == "torch" and isinstance(node.func, ast.Attribute):
            given = {keyword.arg for keyword in node.keywords}
            if node.func.attr in MAKE_TENSORS and not given & {"device", None}:
                yield node.lineno, ast.unparse(node)


def without_subject(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """(line, text) of each docstring that begins with a word in the place of a noun or a verb."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            text = ast.get_docstring(node) or ""
            if text.partition(" ")[0] in NO_SUBJECT:
                yield node.body[0].lineno, text.partition("\n")[0]


def main() -> None:
    """Look at every module."""
    trees = {path: ast.parse(path.read_text()) for path in sorted(PACKAGE.rglob("*.py"))}
    wrong = [
        f"{path}:{line}: {text} is private to another module"
        for path, tree in trees.items()
        for line, text in private_accesses(tree)
    ]
    wrong += [
        f"{path}:{line}: {text} names no device" for path, tree in trees.items() for line, text in without_device(tree)
    ]
    wrong += [
        f"{path}:{line}: {text!r} has to begin with a noun or a verb"
        for path, tree in trees.items()
        if CLASSIC not in path.parents
        for line, text in without_subject(tree)
    ]
    modules = {module_of(path) for path in trees}
    graph = {module_of(path): imported(tree, modules) - {module_of(path)} for path, tree in trees.items()}
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        wrong.append(f"a circle of imports: {' -> '.join(reversed(error.args[1]))}")
    count = {
        path: sum(isinstance(node, ast.Name) and node.id == "Any" for node in ast.walk(tree))
        for path, tree in trees.items()
    }
    if sum(count.values()) > MOST_ANY:
        most = ", ".join(f"{path} {n}" for path, n in sorted(count.items(), key=lambda item: -item[1])[:8])
        wrong.append(f"Any is written {sum(count.values())} times, at most {MOST_ANY} are allowed; most in {most}")
    print(*wrong, sep="\n")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
