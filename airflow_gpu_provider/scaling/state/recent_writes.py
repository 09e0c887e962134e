"""RecentWrites: what runs wrote to the cloud in the last moments, while it may still show the old state.

The clouds' APIs are eventually consistent ("Eventual consistency in the Amazon EC2 API": what a call changed "might not
be immediately visible to all subsequent commands"). Another process would set a size again that was just set, or miss
it in its last check; a machine that was just released would be given to the next run. So each writer records its writes
next to the pool's lock, which is consistent, and each reader corrects the cloud's answers with them.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Self

from airflow_gpu_provider.clouds.backoff import SHOWN_AFTER
from airflow_gpu_provider.clouds.base import Group, Machine
from airflow_gpu_provider.errors import CloudError
from airflow_gpu_provider.untrusted import NotParsed, loads, read

_SIZES = range(100_000)

GONE_AFTER = timedelta(minutes=5)
"""For how long a released machine does not count as existing. It never comes back."""


@dataclass(frozen=True, kw_only=True)
class RecentWrites:
    """What was done to a pool's groups.

    Attributes:
        sizes: The last size of each group, and when it was set.
        released: When each machine was released, by `Machine.id`.
        upgraded: When the upgrade of each group began, whose status may not show it yet.
    """

    sizes: Mapping[str, tuple[int, datetime]] = field(default_factory=dict)
    released: Mapping[str, datetime] = field(default_factory=dict)
    upgraded: Mapping[str, datetime] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse the output of `dump`; empty if a manual edit made it unreadable."""
        try:
            return read(text, cls._parse) if text else cls()
        except NotParsed:
            return cls()

    @classmethod
    def _parse(cls, text: str) -> Self:
        raw = loads(text)
        sizes = {name: (_size(size), _time(at)) for name, (size, at) in raw.get("sizes", {}).items()}
        times = {of: {name: _time(at) for name, at in raw.get(of, {}).items()} for of in ("released", "upgraded")}
        return cls(sizes=sizes, **times)

    def dump(self) -> str:
        """Return it as text; empty if there is nothing."""
        raw: dict[str, Any] = {
            "sizes": {name: [size, at.isoformat()] for name, (size, at) in self.sizes.items()},
            "released": {id_: at.isoformat() for id_, at in self.released.items()},
        }
        if self.upgraded:
            raw["upgraded"] = {name: at.isoformat() for name, at in self.upgraded.items()}
        return json.dumps(raw) if self.sizes or self.released or self.upgraded else ""

    def with_size(self, group: str, size: int, now: datetime) -> Self:
        """Return it with a group's new size, and without outdated entries."""
        recent = self._fresh(now)
        return replace(recent, sizes={**recent.sizes, group: (size, now)})

    def with_upgraded(self, groups: Iterable[str], now: datetime) -> Self:
        recent = self._fresh(now)
        return replace(recent, upgraded={**recent.upgraded, **dict.fromkeys(groups, now)})

    def with_released(self, machines: Iterable[Machine], groups: Iterable[Group], now: datetime) -> Self:
        """Return it with these machines released, and each group's size, which was that in `groups`, reduced by them.

        The size of a group that is not among them is dropped.
        """
        recent, gone = self._fresh(now), tuple(machines)
        less = Counter(machine.group for machine in gone)
        before = {group.name: group.desired for group in groups if group.name in less}
        before |= {name: size for name, (size, _) in recent.sizes.items() if name in before}
        sizes = {name: (max(0, size - less[name]), now) for name, size in before.items()}
        released = {machine.id: now for machine in gone}
        return replace(recent, sizes={**recent.sizes, **sizes}, released={**recent.released, **released})

    def on(self, groups: Iterable[Group], now: datetime) -> tuple[Group, ...]:
        """Return the groups' actual state, from the groups as the cloud shows them.

        Raises:
            CloudError: A group whose size was just set is not shown: its present and future machines are unknown.
        """
        recent, groups = self._fresh(now), tuple(groups)
        unseen = {name for name, (size, _) in recent.sizes.items() if size} - {group.name for group in groups}
        if unseen:
            raise CloudError(
                f"The cloud does not show {', '.join(sorted(unseen))}, whose size was set moments ago.",
                "Look again in some seconds.",
                groups=sorted(unseen),
            )
        return tuple(recent._on(group) for group in groups)

    def _on(self, group: Group) -> Group:
        if group.name in self.upgraded and group.status == "active" and not group.machines:
            group = replace(group, status="upgrading")
        desired, _ = self.sizes.get(group.name, (group.desired, None))
        gone = {machine.id for machine in group.live if self._is_gone(machine)}
        if desired == group.desired and not gone:
            return group
        machines = tuple(replace(each, state="terminating") if each.id in gone else each for each in group.machines)
        return replace(group, desired=desired, machines=machines)

    def _is_gone(self, machine: Machine) -> bool:
        """Whether it was released, and is not another machine that has its name now."""
        at = self.released.get(machine.id)
        return at is not None and (machine.launched_at is None or machine.launched_at <= at)

    def _fresh(self, now: datetime) -> Self:
        return replace(
            self,
            sizes={name: (size, at) for name, (size, at) in self.sizes.items() if abs(now - at) < SHOWN_AFTER},
            released={id_: at for id_, at in self.released.items() if abs(now - at) < GONE_AFTER},
            upgraded={name: at for name, at in self.upgraded.items() if abs(now - at) < SHOWN_AFTER},
        )


def _size(number: Any) -> int:
    size = int(number)
    if size not in _SIZES:
        raise ValueError(f"{size} is no size of a group")
    return size


def _time(text: str) -> datetime:
    at = datetime.fromisoformat(text)
    if at.tzinfo is None:
        raise ValueError(f"{text} has no time zone")
    return at
