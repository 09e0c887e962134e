"""Where code outside a cloud's own rooms names a cloud, or asks a pool or a group of which kind it is.

A cloud's own words are read from the code, so that a new name for an old question is found too: the kinds, and the
fields, properties and methods that a cloud's pool has and `GpuPool` has not. What `GpuPool` answers is nobody's leak.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from functools import cache

from tests.unit.house.source import ROOT, trees

CLOUDS = "|".join(path.parent.name for path in sorted(ROOT.glob("clouds/*/__init__.py")))
ROOMS = re.compile(rf"^clouds/({CLOUDS})/")
MODULES = re.compile(rf"\bclouds\.({CLOUDS})\b")
PUBLIC_NAMES = "__init__.py"
PROVISIONERS = frozenset({"karpenter", "auto-mode", "autopilot", "compute-class"})
POOL = re.compile(r"(^|[._])(pool|spec|first|small|other|named|group)s?$")

Leak = tuple[int, str, str]


def leaks() -> Mapping[str, set[Leak]]:
    """Return the places of each file: line, kind of question, and its text."""
    found = {}
    for path, tree in trees().items():
        if not ROOMS.match(path) and path != PUBLIC_NAMES and (places := set(_leaks_in(tree))):
            asked = {line for line, kind, _ in places if kind in ("kind==", "getattr")}
            found[path] = {place for place in places if place[1] != "word" or place[0] not in asked}
    return found


def _leaks_in(tree: ast.Module) -> Iterator[Leak]:
    prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        kind = _kind_of(node)
        if kind and id(node) not in prose:
            yield getattr(node, "lineno", 0), kind, ast.unparse(node)


def _kind_of(node: ast.AST) -> str:
    match node:
        case ast.Call(func=ast.Name(id="getattr" | "hasattr"), args=[of, name, *_]):
            asks = name.value in words() if isinstance(name, ast.Constant) else POOL.search(ast.unparse(of))
            return "getattr" if asks else ""
        case ast.Call(func=ast.Name(id="isinstance" | "issubclass")):
            return "isinstance" if pools().keys() & set(_names_in(node)) else ""
        case ast.MatchClass(cls=named):
            return "case" if pools().keys() & set(_names_in(named)) else ""
        case ast.Attribute(attr=attr, value=of):
            return "attr" if attr in words() and POOL.search(ast.unparse(of)) else ""
        case ast.Compare():
            return "kind==" if any(_is_kind(each) for each in ast.walk(node)) else ""
        case ast.Constant(value=str(text)):
            return "word" if text in kinds() - {"kubernetes"} or MODULES.search(text) else ""
        case ast.ImportFrom(module=str(module), names=names):
            return "import" if any(MODULES.search(each) for each in (module, *_all_of(module, names))) else ""
        case ast.Import(names=names):
            return "import" if any(MODULES.search(alias.name) for alias in names) else ""
    return ""


def _all_of(module: str, names: list[ast.alias]) -> list[str]:
    return [f"{module}.{alias.name}" for alias in names]


def _is_kind(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "kind" and bool(POOL.search(ast.unparse(node.value)))


def _names_in(node: ast.AST) -> Iterator[str]:
    for each in ast.walk(node):
        if isinstance(each, ast.Name):
            yield each.id
        elif isinstance(each, ast.Attribute):
            yield each.attr


@cache
def _classes() -> Mapping[str, ast.ClassDef]:
    return {node.name: node for tree in trees().values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}


@cache
def pools() -> Mapping[str, ast.ClassDef]:
    """Return the classes of pools, but for GpuPool itself."""
    return {name: node for name, node in _classes().items() if name != "GpuPool" and _is_pool(name)}


def _is_pool(name: str, *seen: str) -> bool:
    if name == "GpuPool":
        return True
    bases = _classes()[name].bases if name in _classes() and name not in seen else []
    return any(_is_pool(ast.unparse(base).split("[")[0].split(".")[-1], name, *seen) for base in bases)


@cache
def words() -> frozenset[str]:
    """Return the public members that a cloud's pool has, and GpuPool has not."""
    found = {member for node in pools().values() for member in _members(node)} - set(_members(_classes()["GpuPool"]))
    return frozenset(member for member in found if not member.startswith("_"))


@cache
def kinds() -> frozenset[str]:
    """Return the values of the pools' `kind`, and the provisioners."""
    found = (
        statement.value.value
        for node in pools().values()
        for statement in node.body
        if isinstance(statement, ast.Assign | ast.AnnAssign)
        and isinstance(statement.value, ast.Constant)
        and "kind" in _targets(statement)
    )
    return PROVISIONERS | {str(kind) for kind in found}


def _members(node: ast.ClassDef) -> Iterator[str]:
    for statement in node.body:
        if isinstance(statement, ast.FunctionDef):
            yield statement.name
        elif isinstance(statement, ast.Assign | ast.AnnAssign):
            yield from _targets(statement)


def _targets(statement: ast.Assign | ast.AnnAssign) -> Iterator[str]:
    targets = [statement.target] if isinstance(statement, ast.AnnAssign) else statement.targets
    yield from (target.id for target in targets if isinstance(target, ast.Name))
