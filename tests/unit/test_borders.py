"""What one room of the provider takes from another has types: `Any` would hide how far two of them have drifted.

What has none says so by a name of its own: a cluster's JSON, a task's arguments as its author gave them.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.unit.house.source import module_of, trees

TYPED = frozenset({"training", "triggers", "decorators"})

STILL_ANY = 112
"""How many such signatures all other rooms have together. Only to be lowered."""

AIRFLOWS_OWN = frozenset({"execute", "resume", "cleanup", "build_pod_request_obj", "hook", "named_manifest"})
"""What Airflow calls of an operator, and what it takes and returns is Airflow's."""


def room_of(path: str) -> str:
    return Path(path).parts[0].removesuffix(".py")


def crossing(paths: Mapping[str, str]) -> set[tuple[str, str]]:
    """Return the modules and the names in them that another room imports."""
    return {
        (node.module, each.name)
        for path, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module in paths
        for each in node.names
        if room_of(paths[node.module]) not in (room_of(path), "__init__")
    }


def signatures(node: ast.stmt, owner: str = "") -> Iterator[tuple[str, ast.expr]]:
    """Yield the annotations of a function, or of a class' constructor and what is public of it, with their names."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        arguments = node.args
        given = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]  # **kwargs are handed on to Airflow
        annotations = [each.annotation for each in given]
        yield from ((f"{owner}{node.name}", each) for each in (*annotations, node.returns) if each is not None)
    elif isinstance(node, ast.ClassDef):
        for each in node.body:
            name = getattr(each, "name", "")
            if name == "__init__" or not (name.startswith("_") or name in AIRFLOWS_OWN):
                yield from signatures(each, f"{node.name}.")
    elif owner and isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        yield f"{owner}{node.target.id}", node.annotation


def is_any(annotation: ast.expr) -> bool:
    return any(isinstance(each, ast.Name) and each.id == "Any" for each in ast.walk(annotation))


def test_no_signature_between_rooms_has_any() -> None:
    paths = {module_of(path): path for path in trees()}
    found = {
        f"{module}.{name}"
        for module, wanted in crossing(paths)
        for node in trees()[paths[module]].body
        if getattr(node, "name", "") == wanted
        for name, annotation in signatures(node)
        if is_any(annotation)
    }
    assert not [name for name in sorted(found) if name.split(".")[1] in TYPED]
    assert len(found) <= STILL_ANY, "\n".join(sorted(found))
