"""The package's modules as syntax trees, by their paths and by their dotted names."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from airflow_gpu_provider import __file__ as package_file

ROOT = Path(package_file).parent


@cache
def trees() -> Mapping[str, ast.Module]:
    """Return every module, by its path below the package."""
    return {path.relative_to(ROOT).as_posix(): ast.parse(path.read_text()) for path in sorted(ROOT.rglob("*.py"))}


def module_of(path: str) -> str:
    """Return the dotted name of the module at a path below the package."""
    return ".".join((ROOT.name, *Path(path).with_suffix("").parts)).removesuffix(".__init__")


def imports_of(path: str) -> Iterator[tuple[str, str, str]]:
    """Yield each imported module, the name that is taken from it, and the name that it has here; "" of `import a.b`."""
    package = module_of(path) if path.endswith("__init__.py") else module_of(path).rpartition(".")[0]
    for node in ast.walk(trees()[path]):
        if isinstance(node, ast.ImportFrom):
            here = package.rsplit(".", node.level - 1)[0] if node.level > 1 else package
            base = ".".join(filter(None, (here, node.module))) if node.level else node.module or ""
            yield from ((base, alias.name, alias.asname or alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((alias.name, "", "") for alias in node.names)
