"""Which modules need each other, imports for type checkers alone included: those the import contracts leave out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import networkx

from tests.unit.house.source import ROOT, imports_of, module_of, trees


def circles() -> list[set[str]]:
    """Return each circle as the names of its modules below the package, the largest first."""
    graph = networkx.DiGraph()
    graph.add_edges_from((module, needed) for module, all_needed in needs().items() for needed in all_needed)
    found = [set(each) for each in networkx.strongly_connected_components(graph) if len(each) > 1]
    return sorted(({name.removeprefix(f"{ROOT.name}.") for name in each} for each in found), key=len, reverse=True)


def needs() -> Mapping[str, set[str]]:
    """Return which modules of the package each of them imports; the package's own `__init__` has all public names."""
    paths = {module_of(path): path for path in trees()}
    passed_on = {
        (module, here): (base, name)
        for module, path in paths.items()
        if path.endswith("__init__.py")
        for base, name, here in imports_of(path)
        if base in paths
    }

    def home(base: str, name: str) -> str:
        seen = set()
        while f"{base}.{name}" not in paths and (base, name) in passed_on and (base, name) not in seen:
            seen.add((base, name))
            base, name = passed_on[base, name]
        return f"{base}.{name}" if f"{base}.{name}" in paths else base

    def needed(module: str, path: str) -> Iterator[str]:
        for base, name, _ in imports_of(path):
            found = home(base, name)
            if found in paths and found not in (module, ROOT.name):
                yield found

    return {module: set(needed(module, path)) for module, path in paths.items() if module != ROOT.name}
