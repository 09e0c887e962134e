"""Label and field selectors of lists and watches, as far as this package uses them.

kubernetes.io/docs/concepts/overview/working-with-objects/labels and .../field-selectors: requirements are ANDed, and a
resource has few fields that can be selected by.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import reduce
from typing import Any

Raw = dict[str, Any]
Matcher = Callable[[Raw], bool]

_OF_ALL = frozenset({"metadata.name", "metadata.namespace"})
_FIELDS = {
    "pods": frozenset({"spec.nodeName", "status.phase"}),
    "nodes": frozenset({"spec.unschedulable"}),
    "events": frozenset({"involvedObject.kind", "involvedObject.name", "reason", "type"}),
}


class UnknownField(Exception):
    """Objects of this resource cannot be selected by this field."""


def matcher(resource: str, query: Mapping[str, str]) -> Matcher:
    """Return what says whether an object is selected; raises UnknownField."""
    labels = [*_requirements(query.get("labelSelector", ""))]
    fields = [*_requirements(query.get("fieldSelector", ""))]
    for name, _ in fields:
        if name not in _OF_ALL | _FIELDS.get(resource, frozenset()):
            raise UnknownField(f"field label not supported: {name}")

    def matches(raw: Raw) -> bool:
        carried = raw["metadata"].get("labels", {})
        for name, value in labels:
            if not _has(carried, name, value):
                return False
        return not fields or all(_field(raw, name) == value for name, value in fields)

    return matches


def _requirements(selector: str) -> Iterator[tuple[str, str | None]]:
    """Yield the name and the value of each requirement; where only the name has to be there, or must not, no value."""
    for part in filter(None, selector.split(",")):
        name, equals, value = part.partition("=")
        yield name, value if equals else None


def _has(labels: Mapping[str, str], name: str, value: str | None) -> bool:
    if value is not None:
        return labels.get(name) == value
    return name[1:] not in labels if name.startswith("!") else name in labels


def _field(raw: Raw, name: str) -> str:
    """Return a field as text: it is empty where it is not set."""
    value = reduce(lambda part, key: (part or {}).get(key), name.split("."), raw)
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
