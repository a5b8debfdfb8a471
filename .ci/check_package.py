"""Checks python/distdl: rooms in order, nothing private of others, names defined once, small files, plain words.

Run by pre-commit from the root of the repository. Prints what is wrong, and exits with 1 if anything is.
"""

import ast
import graphlib
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

PACKAGE = Path("python/distdl")
MOST_ANY = 60
CLASSIC = PACKAGE / "classic"
TORCH = PACKAGE / "torch_compat"
MPI = (PACKAGE / "partitions", PACKAGE / "process")
ROOMS = Path("docs/rooms.txt")
LONGEST_FILE, LONGEST_CLASS = 300, 250
EXTENSION = "_core"
NOT_NOUNS = {"one", "ones", "found", "given", "more", "mine"}
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
    """The names of other packages, and those derived from them, in a module's body: their privacy is not ours."""
    foreign = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [(alias.name, alias.asname or alias.name.partition(".")[0]) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [(str(node.module), alias.asname or alias.name) for alias in node.names]
        else:
            continue
        foreign |= {name for module, name in names if module.partition(".")[0] != PACKAGE.name}
    for node in tree.body:
        if isinstance(node, ast.Assign) and root_of(node.value) in foreign:
            foreign |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return foreign


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


def imports(tree: ast.Module) -> Iterator[tuple[int, str, str]]:
    """(line, module, name) of each import, those that only type checkers see as well; the name is "" for a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                raise SystemExit(f"line {node.lineno}: a relative import; modules are imported by their whole name")
            yield from ((node.lineno, str(node.module), alias.name) for alias in node.names)


def imported(tree: ast.Module, modules: set[str]) -> Iterator[tuple[int, str]]:
    """(line, module) for the modules of the package that a module imports. `from distdl import nn` means distdl.nn."""
    for line, module, name in imports(tree):
        whole = f"{module}.{name}"
        if module.partition(".")[0] == PACKAGE.name and name != EXTENSION:
            yield line, whole if whole in modules else module


def rooms() -> dict[str, int]:
    """The place of each room in the order of imports; two spaces or more stand before its description."""
    names = [name for line in ROOMS.read_text().splitlines() for name in line.partition("  ")[0].split()]
    return {f"{PACKAGE.name}.{name}": place for place, name in enumerate(names)}


def room_of(module: str, known: Mapping[str, int]) -> str:
    """The room of a module: the innermost folder around it that is one."""
    while module not in known:
        module = module.rpartition(".")[0]
        if not module:
            raise SystemExit(f"{ROOMS} has no room for a module of {PACKAGE}")
    return module


def out_of_order(
    module: str, tree: ast.Module, modules: set[str], known: Mapping[str, int]
) -> Iterator[tuple[int, str]]:
    """(line, text) of each import of a room that stands later in the order. The package itself may import all."""
    if module == PACKAGE.name:
        return
    own = room_of(module, known)
    for line, other in imported(tree, modules):
        if other == PACKAGE.name or known[room_of(other, known)] > known[own]:
            yield line, f"imports {other}, which stands later in {ROOMS} than {own}"


def private_to_torch(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """(line, text) of each use of a name that torch keeps private."""
    names = {"torch"}
    for line, module, name in imports(tree):
        if module.partition(".")[0] == "torch":
            names.add(name)
            if any(map(is_private, (*module.split("."), name))):
                yield line, f"from {module} import {name}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_private(node.attr) and root_of(node.value) in names:
            yield node.lineno, ast.unparse(node)


def top_level(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """(line, name) of each definition in the body of a module."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from ((node.lineno, target.id) for target in targets if isinstance(target, ast.Name))


def defined_twice(trees: Mapping[Path, ast.Module]) -> Iterator[str]:
    """Names that two modules define. Those of functional are those of operators: one word for an operation."""
    places: dict[str, Path] = {}
    for path, tree in trees.items():
        if path == PACKAGE / "functional.py":
            continue
        for line, name in {name: (line, name) for line, name in top_level(tree)}.values():
            if not name.startswith("__") and places.setdefault(name, path) != path:
                yield f"{path}:{line}: {name} is also defined in {places[name]}"


def not_nouns(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """(line, name) of variables, arguments, functions and own attributes that are called by a word like `one`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names = [node.id]
        elif isinstance(node, ast.Attribute) and is_own(node.value):
            names = [node.attr]
        elif isinstance(node, ast.arg):
            names = [node.arg]
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            names = [node.name]
        else:
            continue
        yield from ((node.lineno, name) for name in names if name in NOT_NOUNS)


def too_long(path: Path, tree: ast.Module) -> Iterator[tuple[int, str]]:
    """(line, text) of a file or class that does not fit in the head."""
    lines = len(path.read_text().splitlines())
    if lines > LONGEST_FILE:
        yield 1, f"{lines} lines, at most {LONGEST_FILE} are allowed"
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and node.end_lineno - node.lineno >= LONGEST_CLASS:
            yield node.lineno, f"{node.name} has {node.end_lineno - node.lineno + 1} lines, at most {LONGEST_CLASS}"


def without_device(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """(line, text) of each tensor that is made on the device that torch takes by default.

    Ranks may have different defaults, and a call that raises on a single rank leaves the others waiting.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and root_of(node.func) == "torch" and isinstance(node.func, ast.Attribute):
            keywords = {keyword.arg for keyword in node.keywords}
            if node.func.attr in MAKE_TENSORS and not keywords & {"device", None}:
                yield node.lineno, ast.unparse(node)


def without_subject(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """(line, text) of each docstring that begins with a word in the place of a noun or a verb."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            text = ast.get_docstring(node) or ""
            if text.partition(" ")[0] in NO_SUBJECT:
                yield node.body[0].lineno, text.partition("\n")[0]


def problems_of(path: Path, tree: ast.Module) -> Iterator[tuple[int, str]]:
    """(line, text) of what is wrong within one module."""
    yield from ((line, f"{text} names no device") for line, text in without_device(tree))
    if path.parent != TORCH:
        yield from ((line, f"{text} is private to another module") for line, text in private_accesses(tree))
    if path.parent != TORCH:
        yield from (
            (line, f"{text} is private to torch; {TORCH} has such names") for line, text in private_to_torch(tree)
        )
    yield from ((line, f"{text!r} has to begin with a noun or a verb") for line, text in without_subject(tree))
    yield from ((line, f"{name} is no noun") for line, name in not_nouns(tree))
    yield from too_long(path, tree)
    if path.parent not in (*MPI, CLASSIC):
        yield from ((line, "imports mpi4py") for line, module, _ in imports(tree) if module.startswith("mpi4py"))


def main() -> None:
    """Look at every module."""
    paths = [path for path in sorted(PACKAGE.rglob("*.py")) if path.name != "_build_info.py"]
    trees = {path: ast.parse(path.read_text()) for path in paths}
    modules, order = {module_of(path) for path in trees}, rooms()
    wrong = [f"{path}:{line}: {text}" for path, tree in trees.items() for line, text in problems_of(path, tree)]
    wrong += [
        f"{path}:{line}: {text}"
        for path, tree in trees.items()
        for line, text in out_of_order(module_of(path), tree, modules, order)
    ]
    wrong += defined_twice({path: tree for path, tree in trees.items() if CLASSIC not in path.parents})
    graph = {
        module_of(path): {module for _, module in imported(tree, modules)} - {module_of(path)}
        for path, tree in trees.items()
    }
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
