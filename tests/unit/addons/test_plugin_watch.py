"""The wait for a pool's GPUs: what it bears, and what only explains."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from airflow_gpu_provider import KubernetesGpuPool
from airflow_gpu_provider.addons import plugin_watch as module
from airflow_gpu_provider.addons.plugin_watch import GpusWait, plugin_pods, watch_plugin
from airflow_gpu_provider.cluster.api.informer import Change
from airflow_gpu_provider.cluster.api.watched import Resource, pool_nodes
from airflow_gpu_provider.errors import CredentialsError, GpuError, GpusNotAllocatable, PermissionDenied
from airflow_gpu_provider.pools.gpu_pool import POOL_LABEL
from airflow_gpu_provider.scaling.wait.records import Progress
from tests.unit.training.test_pod_placement import a_pool
from tests.unit.training.test_pod_watch import raw_node

POOL = a_pool()
PODS = plugin_pods("kube-system")
(NODES,) = pool_nodes(POOL.node_selector)
START = datetime(2026, 1, 1, 3, tzinfo=UTC)
WAIT = GpusWait(pool=POOL.name, server="the plugin", started=START, deadline=START + timedelta(minutes=20))


class Played:
    """A feed, and its connection, in virtual time: bunches of changes, one for each look."""

    def __init__(self, *bunches: list[Change], log: str | Exception = "") -> None:
        self.api = self
        self._bunches = list(bunches)
        self._log = log
        self._now = START

    async def now(self) -> datetime:
        return self._now

    async def changes(self, timeout: float) -> list[Change]:
        self._now += timedelta(seconds=max(timeout, 1))
        return self._bunches.pop(0) if self._bunches else []

    async def text(self, path: str, **_: str) -> str:
        if isinstance(self._log, Exception):
            raise self._log
        return self._log


Watch = Callable[[Played], Any]


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    async def play(feed: Played) -> Progress:
        @asynccontextmanager
        async def watching(*_: Any) -> AsyncIterator[Played]:
            yield feed

        monkeypatch.setattr(module, "watching", watching)
        return await watch_plugin(POOL, WAIT, namespace="kube-system", report=lambda line: None)

    return play


@pytest.mark.parametrize(
    ("provisioner", "watched"), [("autopilot", {"nodes"}), ("auto-mode", {"nodes"}), ("karpenter", {"nodes", "pods"})]
)
async def test_no_pods_are_watched_where_the_platform_brings_the_plugin(
    monkeypatch: pytest.MonkeyPatch, provisioner: Any, watched: set[str]
) -> None:
    pool = KubernetesGpuPool(name="brought", provisioner=provisioner, node_selector_labels={"x": "y"}, gpus_per_node=1)
    wanted: list[Resource] = []

    @asynccontextmanager
    async def watching(identity: object, access: object, wants: Any) -> AsyncIterator[Played]:
        wanted.extend(wants)
        yield Played([synced(each) for each in wants])

    monkeypatch.setattr(module, "watching", watching)
    assert (await watch_plugin(pool, WAIT, namespace="kube-system", report=lambda line: None)).done
    assert {resource.path.rpartition("/")[2] for resource in wanted} == watched


def synced(resource: Resource) -> Change:
    return Change(resource=resource, kind="synced")


def node(gpus: int) -> Change:
    return Change(resource=NODES, kind="present", raw=raw_node(gpus=gpus))


def pod() -> Change:
    metadata = {
        "namespace": "kube-system",
        "name": "plugin-x",
        "uid": "p1",
        "labels": {POOL_LABEL: POOL.name},
        "creationTimestamp": "2026-01-01T00:00:00Z",
    }
    raw = {"metadata": metadata, "spec": {"nodeName": "n1"}, "status": {"phase": "Running"}}
    return Change(resource=PODS, kind="present", raw=raw)


def trouble(resource: Resource, error: GpuError) -> Change:
    return Change(resource=resource, kind="trouble", error=error)


async def test_pods_that_may_not_be_read_are_not_needed(watch: Watch) -> None:
    denied = trouble(PODS, PermissionDenied("May not list pods."))
    assert (await watch(Played([denied], [synced(NODES), node(1)]))).done
    late = await watch(Played([denied, synced(NODES), node(0)]))
    assert type(late.error) is GpusNotAllocatable


@pytest.mark.parametrize("cls", [PermissionDenied, CredentialsError])
async def test_a_refusal_that_passes_is_sat_out(watch: Watch, cls: type[GpuError]) -> None:
    denied = trouble(NODES, cls("May not list nodes."))
    assert (await watch(Played([denied, synced(PODS)], [], [], [synced(NODES), node(1)]))).done


async def test_a_refusal_that_lasts_is_raised(watch: Watch) -> None:
    feed = Played([trouble(NODES, PermissionDenied("May not list nodes.")), synced(PODS)])
    with pytest.raises(PermissionDenied):
        await watch(feed)
    assert timedelta(minutes=5) <= await feed.now() - START < timedelta(minutes=8)


@pytest.mark.parametrize(("log", "says"), [("no driver\n", "no driver"), (PermissionDenied("May not read logs."), "")])
async def test_last_words_that_cannot_be_read_replace_no_error(watch: Watch, log: str | Exception, says: str) -> None:
    late = await watch(Played([synced(NODES), synced(PODS), node(0), pod()], log=log))
    assert type(late.error) is GpusNotAllocatable
    assert says in str(late.error)
