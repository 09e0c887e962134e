"""A group of the acceptance's own as one that others own: it loses this package's mark for a night, and gets it back.

The mark stays, and is empty meanwhile: the documented role may change a group by its mark, and give a mark to any.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from airflow_gpu_provider.acceptance.pools import CloudPool
from airflow_gpu_provider.errors import CloudError
from airflow_gpu_provider.platforms.base import Report
from airflow_gpu_provider.pools import EksGpuPool, GkeGpuPool

_LOOKS = 3
_LOOK_SECONDS = 2.0
_SHOWN_WITHIN = 120.0


def lend(pool: CloudPool, group: str, echo: Report) -> None:
    """Take this package's mark off a group of the pool."""
    _mark(_marks_of(pool), group, "", echo)


def take_back(pool: CloudPool, echo: Report) -> None:
    """Put the mark back on each group of the pool that was lent, by this process or one before it."""
    marks = _marks_of(pool)
    for group in [name for name, mark in marks.read().items() if mark == ""]:
        _mark(marks, group, pool.name, echo)


def _mark(marks: _EksMarks | _GkeMarks, group: str, mark: str, echo: Report) -> None:
    """Put a mark on a group, and wait until the cloud shows it several times in a row.

    A read may be seconds old, and an accurate one be followed by one that is not ("Eventual consistency" in EC2's
    developer guide): the night that comes next would take the group for whose it was.
    """
    marks.write(group, mark, echo)
    deadline, in_a_row = time.monotonic() + _SHOWN_WITHIN, 0
    while True:
        in_a_row = in_a_row + 1 if marks.read().get(group) == mark else 0
        if in_a_row == _LOOKS:
            return
        if time.monotonic() > deadline:
            raise CloudError(
                f"Group {group} does not show the mark {mark!r} that was set {_SHOWN_WITHIN:.0f} s ago.",
                "Check what else changes the group's tags or labels, and run the acceptance again.",
                group=group,
            )
        time.sleep(_LOOK_SECONDS)


def _marks_of(pool: CloudPool) -> _EksMarks | _GkeMarks:
    return _EksMarks(pool) if isinstance(pool, EksGpuPool) else _GkeMarks(pool)


class _EksMarks:
    """Tags of a cluster's managed node groups."""

    def __init__(self, pool: EksGpuPool) -> None:
        from airflow_gpu_provider.platforms.aws.cluster import EksCluster
        from airflow_gpu_provider.platforms.aws.spec import POOL_TAG

        self._eks, self._tag = EksCluster(pool), POOL_TAG

    def read(self) -> dict[str, str | None]:
        """Return the mark of each group that may be the pool's, by name; None where it has none."""
        return {name: (raw.get("tags") or {}).get(self._tag) for name, raw in self._eks.groups.read().items()}

    def write(self, group: str, mark: str, echo: Report) -> None:
        arn = self._eks.groups.read()[group]["nodegroupArn"]
        self._eks.clients.eks.call("tag_resource", resourceArn=arn, tags={self._tag: mark})


class _GkeMarks:
    """Resource labels of a cluster's node pools."""

    def __init__(self, pool: GkeGpuPool) -> None:
        from airflow_gpu_provider.platforms.google.cluster import GkeCluster
        from airflow_gpu_provider.platforms.google.spec import POOL_LABEL

        self._gke, self._label = GkeCluster(pool), POOL_LABEL

    def read(self) -> dict[str, str | None]:
        """Return the mark of each group that may be the pool's, by name; None where it has none."""
        return {name: labels.get(self._label) for name, labels in self._labels().items()}

    def write(self, group: str, mark: str, echo: Report) -> None:
        from airflow_gpu_provider.platforms.google.node_pools import Step

        change = {"resource_labels": {"labels": {**self._labels()[group], self._label: mark}}}
        step = Step(group=group, doing=f"mark {group}", start=lambda: self._gke.node_pools.update(group, change))
        for error in self._gke.operations.run([step], echo).values():
            raise error

    def _labels(self) -> dict[str, Mapping[str, str]]:
        from airflow_gpu_provider.platforms.google.spec import labels_of

        found = self._gke.node_pools.read()
        return {name: labels_of(raw) for name, raw in found.items() if name.startswith(f"{self._gke.pool.name}-")}
