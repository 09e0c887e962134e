"""Lists that threads of one process share: who gets which request's answer."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any

import pytest

from airflow_gpu_provider.cluster.api import shared_lists
from airflow_gpu_provider.cluster.api.shared_lists import Wanted, has_labels, shared_items
from airflow_gpu_provider.errors import ClusterUnreachable

POOLS = ("a", "b", "c", "d")


class Cluster:
    """Stands for list_items: one object for each pool, and each request numbered. A request waits while it is held."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.error: Exception | None = None
        self.numbers = count()
        self.may_answer = threading.Event()
        self.is_asked = threading.Event()

    def __call__(self, api: Any, path: str, *, resource: str, labelSelector: str) -> Iterator[dict[str, Any]]:
        self.asked.append(labelSelector)
        number = next(self.numbers)
        self.is_asked.set()
        self.may_answer.wait()
        if self.error:
            raise self.error
        names = [pool for pool in POOLS if labelSelector in ("pool", f"pool={pool}")]
        return iter([{"number": number, "metadata": {"labels": {"pool": name}}} for name in names])


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    stand_in = Cluster()
    monkeypatch.setattr(shared_lists, "list_items", stand_in)
    yield stand_in
    shared_lists._desks.clear()


def of_pool(pool: str) -> Wanted:
    return Wanted(
        path="/things",
        resource="things",
        own={"labelSelector": f"pool={pool}"},
        wide={"labelSelector": "pool"},
        is_own=lambda raw: has_labels(raw, {"pool": pool}),
    )


def names(items: list[dict[str, Any]]) -> list[str]:
    return [item["metadata"]["labels"]["pool"] for item in items]


def ask_while_one_is_under_way(cluster: Cluster, *pools: str) -> list[Any]:
    """Have one thread ask for pool a, and others for these pools while its request is under way."""
    with ThreadPoolExecutor() as threads:
        first = threads.submit(shared_items, "k8s", None, of_pool("a"))
        cluster.is_asked.wait()
        others = [threads.submit(shared_items, "k8s", None, of_pool(pool)) for pool in pools]
        (desk,) = shared_lists._desks.values()
        while len(desk._next.wanted) < len(pools):
            pass
        cluster.may_answer.set()
        return [first, *others]


def test_who_asks_while_a_list_is_under_way_shares_the_next(cluster: Cluster) -> None:
    answers = ask_while_one_is_under_way(cluster, "b", "c", "d")
    assert cluster.asked == ["pool=a", "pool"]
    assert [names(each.result()) for each in answers] == [["a"], ["b"], ["c"], ["d"]]


def test_who_wants_the_same_gets_no_more_than_that(cluster: Cluster) -> None:
    answers = ask_while_one_is_under_way(cluster, "b", "b")
    assert cluster.asked == ["pool=a", "pool=b"]
    assert [names(each.result()) for each in answers] == [["a"], ["b"], ["b"]]


def test_a_failed_list_fails_for_all_who_share_it_and_not_for_the_next(cluster: Cluster) -> None:
    cluster.error = ClusterUnreachable("It does not answer.", "Wait.")
    for each in ask_while_one_is_under_way(cluster, "b", "c"):
        with pytest.raises(ClusterUnreachable):
            each.result()
    cluster.error = None
    assert names(shared_items("k8s", None, of_pool("d"))) == ["d"]


def test_other_clusters_and_who_shares_nothing_ask_for_themselves(cluster: Cluster) -> None:
    cluster.may_answer.set()
    for where in ("k8s", "other", ""):
        assert names(shared_items(where, None, of_pool("b"))) == ["b"]
    assert cluster.asked == ["pool=b"] * 3


def test_no_answer_is_older_than_its_question(cluster: Cluster) -> None:
    cluster.may_answer.set()

    def ask(pool: str) -> int:
        before = next(cluster.numbers)
        (item,) = shared_items("k8s", None, of_pool(pool))
        return int(item["number"]) - before

    with ThreadPoolExecutor(8) as threads:
        assert all(age > 0 for age in threads.map(ask, POOLS * 100))
