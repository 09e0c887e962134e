"""Allowed: what a pool's spec allows its nodes to be, as demand records it.

By it two DAGs that use one pool name for different machines notice each other, and a decision knows which machines
serve the demand.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Self

from airflow_gpu_provider.untrusted import loads, one_line

_IN_WORDS = {
    "types": "machine types",
    "markets": "capacity types",
    "zones": "zones",
    "labels": "node labels",
}
_LISTS = ("types", "markets", "zones")
_LONGEST_PART = 200  # characters of one part in an error


@dataclass(frozen=True, kw_only=True)
class Allowed:
    """What the nodes may be, in no order; what is empty the spec leaves open.

    Attributes:
        types: Machine types, as in the label node.kubernetes.io/instance-type.
        markets: Capacity types.
        labels: The labels that the spec's author gives the nodes, or selects them by.
    """

    types: tuple[str, ...] = ()
    markets: tuple[str, ...] = ()
    zones: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict, hash=False)

    @classmethod
    def of(
        cls,
        *,
        types: Iterable[str] = (),
        markets: Iterable[str] = (),
        zones: Iterable[str] = (),
        labels: Mapping[str, str],
    ) -> Self:
        return cls(
            types=tuple(sorted(types)),
            markets=tuple(sorted(markets)),
            zones=tuple(sorted(zones)),
            labels=dict(sorted(labels.items())),
        )

    def differences(self, other: Allowed) -> list[str]:
        """Return each part in which another spec allows something else: what that has, and what this one has."""
        own, theirs = vars(self), vars(other)
        return [
            f"{words} {_listed(theirs[name], name)} instead of {_listed(own[name], name)}"
            for name, words in _IN_WORDS.items()
            if own[name] != theirs[name]
        ]

    def dump(self) -> str:
        return json.dumps({name: value for name, value in asdict(self).items() if value})

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read what `dump` has returned.

        Raises:
            ValueError, TypeError, AttributeError: It is something else.
        """
        raw = loads(text)
        lists = [raw.get(name, []) for name in _LISTS]
        labels = raw.get("labels", {})
        texts = [*(each for one in lists for each in one), *labels.values()]
        if not all(isinstance(one, list) for one in lists) or not all(isinstance(each, str) for each in texts):
            raise ValueError(f"{text} does not list what a pool's nodes may be")
        types, markets, zones = lists
        return cls.of(types=types, markets=markets, zones=zones, labels=labels)


def _listed(values: Sequence[str] | Mapping[str, str], name: str) -> str:
    texts = [f"{key}={value}" for key, value in values.items()] if isinstance(values, Mapping) else values
    return one_line(", ".join(texts), _LONGEST_PART) or ("none" if name == "labels" else "any")
