"""Lists that several threads of one process want of one cluster: who asks while a list is under way shares the next.

Nobody gets an answer older than the question, so a decision may rest on one as on a list of its own.
"""

from __future__ import annotations

import os
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from airflow_gpu_provider.cluster.api.rest import ApiClient, list_items
from airflow_gpu_provider.cluster.model.pod_state import Json

Selectors = Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """Objects of one resource: some of them, or those of all pools.

    Attributes:
        path, resource: Of the collection, and RBAC's word for it.
        own: The selectors of those that are wanted, as a list's query has them.
        wide: The selectors of a list that has them and what others want; the same for all who may share it.
        is_own: Whether an object of the wide list is one of them.
    """

    path: str
    resource: str
    own: Selectors
    wide: Selectors
    is_own: Callable[[Json], bool] = lambda raw: True


def has_labels(raw: Json, labels: Mapping[str, str]) -> bool:
    """Return True if an object has all of these labels, as a label selector selects by equality."""
    return labels.items() <= (raw["metadata"].get("labels") or {}).items()


def shared_items(cluster: str, api: ApiClient, wanted: Wanted) -> list[dict[str, Any]]:
    """Return the items of a list that began after this call, shared with others of this process who want some of it.

    Args:
        cluster: Names the cluster, and as whom it is asked (`GpuPool.cluster_identity`). Empty: nothing is shared.

    Raises:
        GpuError: The list failed; all who share it get the error.
    """
    if not cluster:
        return _list(api, wanted, wanted.own)
    return _desk(cluster, wanted).items(api, wanted)


@dataclass
class _Round:
    """One request, and all who asked for it before it was sent."""

    wanted: list[Wanted] = field(default_factory=list)
    answer: Future[list[dict[str, Any]]] = field(default_factory=Future)


class _Desk:
    """Where the lists of one collection are asked for. One request is under way at a time, led by the first to ask."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._under_way = threading.Lock()
        self._next = _Round()

    def items(self, api: ApiClient, wanted: Wanted) -> list[dict[str, Any]]:
        with self._lock:
            mine = self._next
            mine.wanted.append(wanted)
            leads = len(mine.wanted) == 1
        if leads:
            with self._under_way:
                self._ask(api, mine)
        return [raw for raw in mine.answer.result() if wanted.is_own(raw)]

    def _ask(self, api: ApiClient, round_: _Round) -> None:
        with self._lock:
            self._next = _Round()
        first = round_.wanted[0]
        are_alike = all(each.own == first.own for each in round_.wanted)
        try:
            round_.answer.set_result(_list(api, first, first.own if are_alike else first.wide))
        except BaseException as error:  # noqa: BLE001 - all who share it get it
            round_.answer.set_exception(error)


def _list(api: ApiClient, wanted: Wanted, selectors: Selectors) -> list[dict[str, Any]]:
    return [*list_items(api, wanted.path, resource=wanted.resource, **selectors)]


_desks: defaultdict[tuple[str, str, tuple[tuple[str, str], ...]], _Desk] = defaultdict(_Desk)


def _desk(cluster: str, wanted: Wanted) -> _Desk:
    return _desks[cluster, wanted.path, tuple(sorted(wanted.wide.items()))]


os.register_at_fork(after_in_child=_desks.clear)  # a child has none of its parent's threads, but its locks
