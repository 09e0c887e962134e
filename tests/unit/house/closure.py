"""Which modules a module needs at run time: imports inside functions count, those for type checkers alone do not."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import cache

from tests.unit.house.source import ROOT, module_of, trees


def closure(start: str) -> set[str]:
    """Return the modules that importing `start`, a name below the package, loads in the end; itself among them.

    A package's `__init__` counts where it imports something: the others cost nothing.
    """
    found: set[str] = set()
    left = [f"{ROOT.name}.{start}"]
    while left:
        module = left.pop()
        if module not in found:
            found.add(module)
            left += [*_needs()[module], *_packages_of(module)]
    return {name.removeprefix(f"{ROOT.name}.") for name in found}


def _packages_of(module: str) -> Iterator[str]:
    parts = module.split(".")
    yield from (each for end in range(2, len(parts)) if _needs()[each := ".".join(parts[:end])])


@cache
def _needs() -> Mapping[str, set[str]]:
    modules = {module_of(path): tree for path, tree in trees().items()}
    return {
        module: {
            f"{base}.{name}" if f"{base}.{name}" in modules else base
            for base, name in _imports(tree)
            if base in modules
        }
        - {module}
        for module, tree in modules.items()
    }


def _imports(node: ast.AST) -> Iterator[tuple[str, str]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
            continue
        if isinstance(child, ast.ImportFrom):
            yield from ((child.module or "", alias.name) for alias in child.names)
        elif isinstance(child, ast.Import):
            yield from ((alias.name, "") for alias in child.names)
        yield from _imports(child)
