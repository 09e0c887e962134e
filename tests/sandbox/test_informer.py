"""The shared informer against a real API server: sharing, late joiners, restarts, expiry, credentials."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

import pytest
from kubernetes import client

from airflow_gpu_provider.cluster.api.access import ClusterAccess
from airflow_gpu_provider.cluster.api.async_api import AsyncApi, Expired
from airflow_gpu_provider.cluster.api.informer import Change, Feed, connected, watching
from airflow_gpu_provider.cluster.api.watched import pod_events, pods
from airflow_gpu_provider.errors import ClusterUnreachable, CredentialsError, PermissionDenied
from gpu_sandbox.control_plane import ControlPlane
from tests.kubeconfig import access_of
from tests.sandbox.running import eventually

NAMESPACE = "informer"
PODS = pods(NAMESPACE)


@pytest.fixture(scope="module")
def access(control_plane: ControlPlane) -> ClusterAccess:
    return access_of(control_plane.kubeconfig)


@pytest.fixture
def core(access: ClusterAccess) -> Iterator[client.CoreV1Api]:
    core = client.CoreV1Api(access.api_client())
    if NAMESPACE not in [one.metadata.name for one in core.list_namespace().items]:
        core.create_namespace({"metadata": {"name": NAMESPACE}})
        eventually(lambda: core.list_namespaced_service_account(NAMESPACE).items)
    yield core
    core.delete_collection_namespaced_pod(NAMESPACE, grace_period_seconds=0)


@pytest.fixture(autouse=True)
async def nothing_is_left() -> AsyncIterator[None]:
    yield
    assert asyncio.all_tasks() == {asyncio.current_task()}


def create(core: client.CoreV1Api, name: str, *, labelled: bool = True, scheduler: str = "nobody's") -> client.V1Pod:
    """A pod that nobody but the test changes, unless `scheduler` says who looks for a node."""
    labels = {"airflow-gpu-provider/pool": "p"} if labelled else {}
    spec = {"containers": [{"name": "base", "image": "busybox"}], "nodeSelector": {"none": "none"}}
    spec["schedulerName"] = scheduler
    return core.create_namespaced_pod(NAMESPACE, {"metadata": {"name": name, "labels": labels}, "spec": spec})


def mark(core: client.CoreV1Api, name: str, value: str) -> None:
    core.patch_namespaced_pod(name, NAMESPACE, {"metadata": {"annotations": {"mark": value}}})


def mark_of(change: Change) -> str:
    return str((change.raw["metadata"].get("annotations") or {}).get("mark"))


async def until(feed: Feed, is_it: Callable[[Change], bool], seconds: float = 120) -> list[Change]:
    """Return what the feed told, up to and with the change that is looked for."""
    told: list[Change] = []
    deadline = time.monotonic() + seconds
    while not any(is_it(change) for change in told):
        assert time.monotonic() < deadline, told
        told += await feed.changes(1)
    return told


def is_synced(change: Change) -> bool:
    return change.kind == "synced"


def is_of(plural: str) -> Callable[[Change], bool]:
    return lambda change: change.kind == "present" and change.resource.path.rpartition("/")[2] == plural


async def test_feed_hears_of_its_own_pod_only(access: ClusterAccess, core: client.CoreV1Api) -> None:
    create(core, "mine")
    create(core, "other")
    create(core, "mine-without-label", labelled=False)
    async with watching("c", lambda: access, {PODS: "mine"}) as feed:
        told = await until(feed, is_synced)
        assert [change.raw["metadata"]["name"] for change in told if change.kind == "present"] == ["mine"]
        mark(core, "other", "1")
        mark(core, "mine", "2")
        (change,) = await until(feed, lambda change: change.kind == "present")
        assert mark_of(change) == "2"
        core.delete_namespaced_pod("mine", NAMESPACE, grace_period_seconds=0)
        told = await until(feed, lambda change: change.kind == "gone")
        assert told[-1].raw["metadata"]["name"] == "mine"


async def test_pod_that_loses_the_label_is_told_as_gone_though_it_is_there(
    access: ClusterAccess, core: client.CoreV1Api
) -> None:
    create(core, "mine")
    async with watching("c", lambda: access, {PODS: "mine"}) as feed:
        await until(feed, is_synced)
        core.patch_namespaced_pod("mine", NAMESPACE, {"metadata": {"labels": {"airflow-gpu-provider/pool": None}}})
        await until(feed, lambda change: change.kind == "gone")
        assert await feed.api.get(f"{PODS.path}/mine") is not None


async def test_late_joiner_gets_what_is_known(access: ClusterAccess, core: client.CoreV1Api) -> None:
    create(core, "mine")
    async with watching("c", lambda: access, {PODS: "mine"}) as first:
        await until(first, is_synced)
        mark(core, "mine", "late")
        await until(first, lambda change: change.kind == "present" and mark_of(change) == "late")
        async with watching("c", lambda: access, {PODS: "mine"}) as late:
            known = await until(late, is_synced)
            assert [change.kind for change in known] == ["present", "synced"]
            assert mark_of(known[0]) == "late"


async def test_many_feeds_share_one_watch_and_hear_at_once(
    access: ClusterAccess, core: client.CoreV1Api, control_plane: ControlPlane
) -> None:
    names = [f"pod-{i}" for i in range(100)]
    for name in names:
        create(core, name)
    # Those of the tests before have ended, and the API server has noticed.
    await asyncio.to_thread(eventually, lambda: watches(control_plane) == 0)
    async with AsyncExitStack() as stack:
        feeds = [await stack.enter_async_context(watching("c", lambda: access, {PODS: name})) for name in names]
        for feed in feeds:
            await until(feed, is_synced)
        await asyncio.to_thread(eventually, lambda: watches(control_plane) > 0)
        assert watches(control_plane) == 1
        took = []
        for name, feed in list(zip(names, feeds, strict=True))[:20]:
            started = time.monotonic()
            await asyncio.to_thread(mark, core, name, "now")
            await until(feed, lambda change: change.kind == "present" and mark_of(change) == "now")
            took.append(time.monotonic() - started)
        assert sorted(took)[len(took) // 2] < 10, "by a watch, not by another list"


def watches(control_plane: ControlPlane) -> int:
    """Watches of pods in one namespace, as the API server counts them."""
    text = control_plane.request("GET", "/metrics")[1]
    lines = [line for line in text.splitlines() if line.startswith("apiserver_longrunning_requests{")]
    wanted = ('resource="pods"', 'scope="namespace"', 'verb="WATCH"')
    return sum(int(line.rpartition(" ")[2]) for line in lines if all(label in line for label in wanted))


async def test_two_resources_in_one_feed(access: ClusterAccess, core: client.CoreV1Api) -> None:
    create(core, "mine", scheduler="default-scheduler")
    async with watching("c", lambda: access, {PODS: "mine", pod_events(NAMESPACE): "mine"}) as feed:
        # Two watches, of which either may be the first to be heard.
        told = await until(feed, is_of("pods"))
        if not any(map(is_of("events"), told)):
            told = await until(feed, is_of("events"))
        assert any(change.raw.get("reason") == "FailedScheduling" for change in told if is_of("events")(change))


async def test_api_server_restart_is_told_and_outlived(
    access: ClusterAccess, core: client.CoreV1Api, control_plane: ControlPlane
) -> None:
    create(core, "mine")
    async with watching("c", lambda: access, {PODS: "mine"}) as feed:
        await until(feed, is_synced)
        await asyncio.to_thread(control_plane.restart_apiserver, 1.0)
        told = await until(feed, lambda change: change.kind == "recovered")
        assert {type(change.error) for change in told if change.kind == "trouble"} == {ClusterUnreachable}
        await asyncio.to_thread(mark, core, "mine", "after")
        await until(feed, lambda change: change.kind == "present" and mark_of(change) == "after")


async def test_expired_version_loses_no_transition(
    access: ClusterAccess, core: client.CoreV1Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server has forgotten the version to go on from: etcd compacts every five minutes, so it is told here."""
    for name in ("stays", "changes", "goes", "replaced"):
        create(core, name)
    stop, real = asyncio.Event(), AsyncApi.watch

    async def watch_until_stopped(self: AsyncApi, *args: Any, **kwargs: Any) -> AsyncIterator[dict[str, Any]]:
        if stop.is_set():
            async for event in real(self, *args, **kwargs):
                yield event
        await stop.wait()
        raise Expired

    monkeypatch.setattr(AsyncApi, "watch", watch_until_stopped)
    names = ("stays", "changes", "goes", "replaced", "new")
    everything = replace(PODS, key=lambda raw: "all")
    async with watching("c", lambda: access, {everything: "all"}) as feed:
        await until(feed, is_synced)
        mark(core, "changes", "1")
        for name in ("goes", "replaced"):
            core.delete_namespaced_pod(name, NAMESPACE, grace_period_seconds=0)
        create(core, "replaced")
        create(core, "new")
        stop.set()
        told = [change for change in await until(feed, is_synced) if change.raw]
        kinds = {name: [c.kind for c in told if c.raw["metadata"]["name"] == name] for name in names}
    assert kinds == {
        "stays": [],
        "changes": ["present"],
        "goes": ["gone"],
        "replaced": ["gone", "present"],
        "new": ["present"],
    }


async def test_refused_token_is_replaced(access: ClusterAccess, core: client.CoreV1Api) -> None:
    made: list[str] = []

    def token() -> str:
        made.append(token_of(core) if made else "expired")
        return made[-1]

    async with watching("t", lambda: by_token(access, token), {PODS: "mine"}) as feed:
        told = await until(feed, is_answered)
        # The token is good, its bearer just may not list pods.
        assert type(told[-1].error) is PermissionDenied
        assert len(made) == 2


async def test_token_that_is_never_accepted(access: ClusterAccess) -> None:
    async with watching("t", lambda: by_token(access, lambda: "no"), {PODS: "mine"}) as feed:
        told = await until(feed, is_answered)
        assert type(told[-1].error) is CredentialsError


def is_answered(change: Any) -> bool:
    """Its first connection may take longer than a client waits for one."""
    return change.kind == "synced" or (change.kind == "trouble" and type(change.error) is not ClusterUnreachable)


def by_token(access: ClusterAccess, token: Callable[[], str]) -> ClusterAccess:
    return replace(access, client_certificate_data="", client_key_data="", token=token)


def token_of(core: client.CoreV1Api) -> str:
    request = client.AuthenticationV1TokenRequest(spec=client.V1TokenRequestSpec(audiences=[], expiration_seconds=600))
    answer = core.create_namespaced_service_account_token("default", NAMESPACE, request)
    return str(answer.status.token)


async def test_cluster_that_cannot_be_found_is_everybodys_error_and_tried_anew(access: ClusterAccess) -> None:
    attempts: list[int] = []

    def open_access() -> ClusterAccess:
        attempts.append(1)
        if len(attempts) == 1:
            raise CredentialsError("No connection.")
        return access

    async def watch() -> None:
        async with watching("e", open_access, {PODS: "mine"}) as feed:
            await until(feed, is_synced)

    results = await asyncio.gather(watch(), watch(), return_exceptions=True)
    assert [type(result) for result in results] == [CredentialsError, CredentialsError]
    await watch()
    assert len(attempts) == 2


async def test_first_one_may_be_cancelled(access: ClusterAccess) -> None:
    may_open = asyncio.Event()
    loop = asyncio.get_running_loop()

    def open_access() -> ClusterAccess:
        asyncio.run_coroutine_threadsafe(may_open.wait(), loop).result()
        return access

    async def watch() -> str:
        async with watching("f", open_access, {PODS: "mine"}) as feed:
            await until(feed, is_synced)
            return "synced"

    first, second = asyncio.create_task(watch()), asyncio.create_task(watch())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.wait([first])
    may_open.set()
    assert await second == "synced"


async def test_single_calls(access: ClusterAccess, core: client.CoreV1Api) -> None:
    uid = create(core, "mine").metadata.uid
    path = f"{PODS.path}/mine"
    async with connected("c", lambda: access) as api:
        assert (await api.get(path))["metadata"]["uid"] == uid  # type: ignore[index]
        assert await api.get(f"{PODS.path}/absent") is None
        assert await api.delete(path, uid="another") is False
        assert await api.delete(path, uid=uid, grace_period_seconds=0) is True
        assert await api.delete(path, uid=uid) is False
        assert await api.text(f"{path}/log") is None
