"""The fake API server (tests/fakes) and the real one, case by case: what unit tests rely on is so on both."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest

from airflow_gpu_provider.cluster.api.async_api import AsyncApi, Expired
from airflow_gpu_provider.cluster.api.clock import ServerClock
from airflow_gpu_provider.cluster.api.rest import MERGE_PATCH, call, count_items, delete, list_items
from airflow_gpu_provider.cluster.model.refusals import ObjectChanged, ObjectNotFound
from airflow_gpu_provider.errors import CloudError, ObjectRejected, ReferenceNotFound
from gpu_sandbox.control_plane import ControlPlane
from tests.fakes.api_server import ApiServer
from tests.fakes.clients import FakeApiClient, FakeAsyncApi
from tests.kubeconfig import access_of

PODS = "/api/v1/namespaces/default/pods"
ACCOUNTS = "/api/v1/namespaces/default/serviceaccounts"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
Raw = dict[str, Any]


@dataclass
class Cluster:
    """One of both.

    Attributes:
        forgets: Has what has changed until now forgotten.
        mark: A label of the objects of one test.
    """

    api: Any
    open_async: Callable[[], AsyncApi]
    forgets: Callable[[], None]
    mark: str

    def labels(self, **more: str) -> dict[str, str]:
        return {"mark": self.mark, **more}

    def lease(self, name: str, **labels: str) -> Raw:
        kind = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}
        meta = {"name": f"{self.mark}-{name}", "labels": self.labels(**labels), "annotations": {"a": "1", "b": "1"}}
        return self.create(LEASES, {**kind, "metadata": meta, "spec": {"holderIdentity": "me"}})

    def pod(self, name: str, **fields: Any) -> Raw:
        """A pod that no scheduler looks at."""
        containers = [{"name": "main", "image": "busybox"}]
        spec = {"containers": containers, "schedulerName": "nobody's", **fields}
        return self.create(PODS, {"metadata": {"name": f"{self.mark}-{name}", "labels": self.labels()}, "spec": spec})

    def create(self, path: str, raw: Raw) -> Raw:
        return call(self.api, "create", path, resource=resource(path), body=raw)

    def read(self, path: str) -> Raw:
        return call(self.api, "get", path, resource=resource(path))

    def update(self, path: str, raw: Raw) -> Raw:
        return call(self.api, "update", path, resource=resource(path), body=raw)

    def patch(self, path: str, patch: Raw, content_type: str = MERGE_PATCH) -> Raw:
        return call(self.api, "patch", path, resource=resource(path), body=patch, content_type=content_type)

    def delete(self, path: str, **options: Any) -> Raw:
        return call(self.api, "delete", path, resource=resource(path), body=options or None)

    def names(self, path: str, **selectors: str) -> list[str]:
        """Return the names of what is selected among the test's own objects."""
        found = list_items(self.api, path, resource=resource(path), **selectors)
        mine = (each["metadata"]["name"] for each in found if each["metadata"]["name"].startswith(self.mark))
        return [name.removeprefix(f"{self.mark}-") for name in mine]


def resource(path: str) -> str:
    parts = path.split("/")
    return next(part for part in reversed(parts) if part in ("pods", "leases", "namespaces", "serviceaccounts"))


def path_of(raw: Raw) -> str:
    return f"{PODS if 'containers' in raw['spec'] else LEASES}/{raw['metadata']['name']}"


@pytest.fixture(params=["fake", "real"])
def cluster(request: pytest.FixtureRequest) -> Any:
    mark = f"m{uuid.uuid4().hex[:8]}"
    if request.param == "fake":
        server = ApiServer()
        yield Cluster(FakeApiClient(server), lambda: FakeAsyncApi(server), server.compact, mark)
        return
    control_plane: ControlPlane = request.getfixturevalue("control_plane")
    access = access_of(control_plane.kubeconfig)
    restart = control_plane.restart_apiserver  # its watch cache begins anew
    cluster = Cluster(access.api_client(), lambda: AsyncApi(access), restart, mark)
    yield cluster
    for raw in list_items(cluster.api, PODS, resource="pods", labelSelector=f"mark={mark}"):
        cluster.delete(path_of(raw), gracePeriodSeconds=0)


def version(raw: Raw) -> str:
    return str(raw["metadata"]["resourceVersion"])


# -- single objects --------------------------------------------------------------------------------------------------


def test_an_object_is_created_once_and_read_as_it_was_answered(cluster: Cluster) -> None:
    made = cluster.lease("one")
    assert {"uid", "resourceVersion", "creationTimestamp"} <= made["metadata"].keys()
    assert made["metadata"]["namespace"] == "default"
    assert cluster.read(path_of(made)) == made
    with pytest.raises(ObjectChanged, match=rf'leases\.coordination\.k8s\.io "{cluster.mark}-one" already exists'):
        cluster.lease("one")
    with pytest.raises(ObjectNotFound, match=r'leases\.coordination\.k8s\.io "none" not found'):
        cluster.read(f"{LEASES}/none")


def test_a_namespace_has_to_be_there(cluster: Cluster) -> None:
    path = LEASES.replace("default", cluster.mark)
    lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "one"}}
    with pytest.raises(ReferenceNotFound, match=f'namespaces "{cluster.mark}" not found'):
        cluster.create(path, lease)
    cluster.create("/api/v1/namespaces", {"metadata": {"name": cluster.mark}})
    assert cluster.create(path, lease)["metadata"]["namespace"] == cluster.mark


def test_a_pod_begins_as_pending(cluster: Cluster) -> None:
    assert cluster.pod("one")["status"]["phase"] == "Pending"


def test_an_update_is_of_the_version_that_is_there(cluster: Cluster) -> None:
    first = cluster.lease("one")
    wanted = {**first, "spec": {"holderIdentity": "you"}}
    second = cluster.update(path_of(first), wanted)
    assert second["spec"] == {"holderIdentity": "you"}
    assert second["metadata"]["uid"] == first["metadata"]["uid"]
    assert int(version(second)) > int(version(first))
    with pytest.raises(ObjectChanged, match="the object has been modified"):
        cluster.update(path_of(first), wanted)
    without = {**wanted, "metadata": {"name": first["metadata"]["name"]}}
    with pytest.raises(ObjectRejected, match=r"metadata\.resourceVersion: .*must be specified for an update"):
        cluster.update(path_of(first), without)


def test_an_update_of_a_lease_that_is_gone_creates_it(cluster: Cluster) -> None:
    first = cluster.lease("one")
    cluster.delete(path_of(first))
    metadata = {"name": first["metadata"]["name"], "resourceVersion": version(first)}
    again = cluster.update(path_of(first), {**first, "metadata": metadata})
    assert again["metadata"]["uid"] != first["metadata"]["uid"]
    assert int(version(again)) > int(version(first))


def test_an_update_that_leaves_labels_out_takes_them_off_and_keeps_what_is_the_servers(cluster: Cluster) -> None:
    first = cluster.lease("one")
    metadata = {"name": first["metadata"]["name"], "resourceVersion": version(first)}
    second = cluster.update(path_of(first), {**first, "metadata": metadata})
    assert "labels" not in second["metadata"]
    assert all(second["metadata"][each] == first["metadata"][each] for each in ("uid", "creationTimestamp"))


def test_a_write_that_changes_nothing_is_no_new_version(cluster: Cluster) -> None:
    first = cluster.lease("one")
    assert version(cluster.update(path_of(first), first)) == version(first)
    assert version(cluster.patch(path_of(first), {"metadata": {"annotations": {"a": "1"}}})) == version(first)


def test_a_merge_patch_merges_takes_away_and_replaces_lists(cluster: Cluster) -> None:
    annotated = {"name": cluster.mark, "annotations": {"a": "1", "b": "1"}}
    secrets = {"secrets": [{"name": "a"}, {"name": "b"}], "automountServiceAccountToken": True}
    cluster.create(ACCOUNTS, {"metadata": annotated, **secrets})
    path = f"{ACCOUNTS}/{cluster.mark}"
    patch = {"metadata": {"annotations": {"a": None}}, "secrets": [{"name": "c"}], "automountServiceAccountToken": None}
    changed = cluster.patch(path, patch)
    assert changed["metadata"]["annotations"] == {"b": "1"}
    assert changed["secrets"] == [{"name": "c"}]
    assert "automountServiceAccountToken" not in changed
    assert "annotations" not in cluster.patch(path, {"metadata": {"annotations": {"b": None}}})["metadata"]


def test_a_patch_is_of_the_object_and_of_the_version_that_it_names(cluster: Cluster) -> None:
    first = cluster.lease("one")
    path, mark = path_of(first), {"annotations": {"a": "2"}}
    with pytest.raises(ObjectChanged, match=r'metadata\.uid: Invalid value: "other": field is immutable'):
        cluster.patch(path, {"metadata": {"uid": "other", **mark}})
    named = {"uid": first["metadata"]["uid"], "resourceVersion": version(first)}
    second = cluster.patch(path, {"metadata": {**named, **mark}})
    assert second["metadata"]["annotations"] == {"a": "2", "b": "1"}
    with pytest.raises(ObjectChanged, match="the object has been modified"):
        cluster.patch(path, {"metadata": {**named, "annotations": {"a": "3"}}})
    with pytest.raises(ObjectChanged, match="the object has been modified"):
        cluster.patch(path, {"metadata": {**named, "uid": "other", **mark}})
    with pytest.raises(ObjectNotFound):
        cluster.patch(f"{LEASES}/none", {"metadata": mark})
    with pytest.raises(ObjectRejected, match="415: Unsupported Media Type"):
        cluster.patch(path, {"metadata": mark}, content_type="application/json")


def test_a_deletion_is_of_the_object_that_it_names(cluster: Cluster) -> None:
    made = cluster.lease("one")
    path = path_of(made)
    assert not delete(cluster.api, path, resource="leases", uid="other")
    assert cluster.read(path) == made
    assert delete(cluster.api, path, resource="leases", uid=made["metadata"]["uid"])
    assert not delete(cluster.api, path, resource="leases")
    again = cluster.lease("one")
    assert again["metadata"]["uid"] != made["metadata"]["uid"]


@pytest.mark.parametrize(
    "fields", [{}, {"nodeName": "n", "terminationGracePeriodSeconds": 0}], ids=["no node", "no grace"]
)
def test_a_pod_that_runs_nowhere_or_has_no_grace_is_gone_at_once(cluster: Cluster, fields: Raw) -> None:
    path = path_of(cluster.pod("one", **fields))
    cluster.delete(path)
    with pytest.raises(ObjectNotFound):
        cluster.read(path)


def test_a_pod_that_has_a_node_is_there_for_its_grace_period(cluster: Cluster) -> None:
    made = cluster.pod("one", nodeName=f"node-{cluster.mark}", terminationGracePeriodSeconds=60)
    path = path_of(made)
    cluster.delete(path)
    ends_at = datetime.fromisoformat(cluster.read(path)["metadata"]["deletionTimestamp"])
    assert 50 < (ends_at - ServerClock(cluster.api).now()).total_seconds() <= 61
    assert cluster.read(path)["metadata"]["deletionGracePeriodSeconds"] == 60
    cluster.delete(path, gracePeriodSeconds=600)
    assert datetime.fromisoformat(cluster.read(path)["metadata"]["deletionTimestamp"]) == ends_at, "nothing is put off"
    cluster.delete(path, gracePeriodSeconds=10)
    assert datetime.fromisoformat(cluster.read(path)["metadata"]["deletionTimestamp"]) < ends_at
    cluster.delete(path, gracePeriodSeconds=0)
    with pytest.raises(ObjectNotFound):
        cluster.read(path)


def test_an_answer_tells_the_servers_time(cluster: Cluster) -> None:
    assert abs(ServerClock(cluster.api).now() - datetime.now(UTC)).total_seconds() < 5


# -- lists -----------------------------------------------------------------------------------------------------------


def test_labels_select(cluster: Cluster) -> None:
    for name, labels in (("b", {"x": "1"}), ("a", {"x": "1", "y": "1"}), ("c", {"x": "2"}), ("d", {})):
        cluster.lease(name, **labels)
    mine = f"mark={cluster.mark}"
    assert cluster.names(LEASES, labelSelector=mine) == ["a", "b", "c", "d"], "by name"
    assert cluster.names(LEASES, labelSelector=f"{mine},x=1") == ["a", "b"]
    assert cluster.names(LEASES, labelSelector=f"x=1,y=1,{mine}") == ["a"]
    assert cluster.names(LEASES, labelSelector=f"{mine},x") == ["a", "b", "c"]
    assert cluster.names(LEASES, labelSelector=f"{mine},!x") == ["d"]


def test_fields_select_pods(cluster: Cluster) -> None:
    cluster.pod("on-a", nodeName=f"a-{cluster.mark}")
    cluster.pod("on-b", nodeName=f"b-{cluster.mark}")
    cluster.pod("waits")
    for path in (PODS, "/api/v1/pods"):
        assert cluster.names(path, fieldSelector=f"spec.nodeName=a-{cluster.mark}") == ["on-a"]
        assert cluster.names(path, fieldSelector="spec.nodeName=,status.phase=Pending") == ["waits"]
        assert cluster.names(path, fieldSelector=f"metadata.name={cluster.mark}-on-b") == ["on-b"]
        assert cluster.names(path, fieldSelector="status.phase=Running") == []
    with pytest.raises(CloudError, match=r"field label not supported: spec\.image"):
        cluster.names(PODS, fieldSelector="spec.image=busybox")


def test_all_pages_show_the_moment_of_the_first(cluster: Cluster) -> None:
    for name in "abcde":
        cluster.lease(name)
    query = {"labelSelector": f"mark={cluster.mark}", "limit": "2"}
    pages = [call(cluster.api, "list", LEASES, resource="leases", query=query)]
    cluster.delete(f"{LEASES}/{cluster.mark}-e")
    cluster.lease("f")
    while token := pages[-1]["metadata"].get("continue"):
        pages.append(call(cluster.api, "list", LEASES, resource="leases", query={**query, "continue": token}))
    assert [[each["metadata"]["name"][-1] for each in page["items"]] for page in pages] == [
        ["a", "b"],
        ["c", "d"],
        ["e"],
    ]
    assert {version(page) for page in pages} == {version(pages[0])}
    assert cluster.names(LEASES, labelSelector=query["labelSelector"]) == ["a", "b", "c", "d", "f"]


def test_a_list_of_all_says_how_many_there_are(cluster: Cluster) -> None:
    for name in "abc":
        cluster.pod(name)
    assert count_items(cluster.api, PODS, resource="pods") == len(list_items(cluster.api, PODS, resource="pods")) >= 3


# -- an event loop's requests, and watches ---------------------------------------------------------------------------


@pytest.fixture
async def loops(cluster: Cluster) -> AsyncIterator[AsyncApi]:
    api = cluster.open_async()
    yield api
    await api.close()


async def test_what_is_not_there_is_no_error_in_an_event_loop(cluster: Cluster, loops: AsyncApi) -> None:
    made = cluster.pod("one")
    path, uid = path_of(made).lstrip("/"), made["metadata"]["uid"]
    assert await loops.get(path) == made
    assert not await loops.annotate(path, uid="other", annotations={"a": "1"})
    assert await loops.annotate(path, uid=uid, annotations={"a": "1"})
    assert (await loops.get(path) or {})["metadata"]["annotations"] == {"a": "1"}
    assert not await loops.delete(path, uid="other")
    assert await loops.delete(path, uid=uid)
    assert await loops.get(path) is None
    assert not await loops.delete(path, uid=uid)
    assert not await loops.patch(path, {"metadata": {"annotations": {"a": "2"}}})


async def told(watch: AsyncIterator[Raw], count: int) -> list[tuple[str, Raw]]:
    """Return the next events of a watch: what happened, and the object."""
    async with asyncio.timeout(60):
        events = [await anext(watch) for _ in range(count)]
    return [(event["type"], event["object"]) for event in events]


async def test_a_group_tells_its_versions_and_a_version_that_is_not_served_has_nothing(
    cluster: Cluster, loops: AsyncApi
) -> None:
    if isinstance(cluster.api, FakeApiClient):
        cluster.api.server.serve("coordination.k8s.io", "v1")
        cluster.api.server.serve("kueue.x-k8s.io")
    group = await loops.get("apis/coordination.k8s.io")
    assert group is not None
    assert "v1" in [each["version"] for each in group["versions"]]
    assert await loops.get("apis/kueue.x-k8s.io") is None
    path = "apis/coordination.k8s.io/v1beta9/namespaces/default/leases"
    assert await loops.get(path) is None
    with pytest.raises(Expired):
        await anext(aiter(loops.watch(path, silence=5, resourceVersion="1")))


async def test_a_watch_tells_what_changed_since_a_version(cluster: Cluster, loops: AsyncApi) -> None:
    before, selector = cluster.lease("before"), f"mark={cluster.mark},x"
    cluster.lease("of-no-interest")
    path = LEASES.lstrip("/")
    since = version(await loops.get(path, labelSelector=selector) or {})
    is_open: list[bool] = []
    watch = loops.watch(
        path, silence=60, on_open=lambda: is_open.append(True), resourceVersion=since, labelSelector=selector
    )
    made = cluster.lease("one", x="1")
    changed = cluster.patch(path_of(made), {"metadata": {"labels": {"x": "2"}}})
    assert await told(watch, 2) == [("ADDED", made), ("MODIFIED", changed)]
    assert is_open == [True]

    unlabelled = cluster.patch(path_of(made), {"metadata": {"labels": {"x": None}}})
    came = cluster.patch(path_of(before), {"metadata": {"labels": {"x": "1"}}})
    cluster.delete(path_of(before))
    (gone, added, deleted) = await told(watch, 3)
    assert (gone[0], gone[1]["metadata"]["labels"]) == ("DELETED", changed["metadata"]["labels"]), "as it was"
    assert version(gone[1]) == version(unlabelled)
    assert added == ("ADDED", came)
    assert (deleted[0], deleted[1]["metadata"]["uid"]) == ("DELETED", before["metadata"]["uid"])
    assert int(version(deleted[1])) > int(version(came))


async def test_a_watch_that_is_taken_up_tells_what_it_has_missed(cluster: Cluster, loops: AsyncApi) -> None:
    made = cluster.lease("one", x="1")
    changed = cluster.patch(path_of(made), {"metadata": {"labels": {"x": "2"}}})
    watch = loops.watch(
        LEASES.lstrip("/"), silence=60, resourceVersion=version(made), labelSelector=f"mark={cluster.mark}"
    )
    assert await told(watch, 1) == [("MODIFIED", changed)]


async def test_a_version_that_is_too_old_has_expired(cluster: Cluster, loops: AsyncApi) -> None:
    made = cluster.lease("one", x="1")
    cluster.patch(path_of(made), {"metadata": {"labels": {"x": "2"}}})
    await asyncio.to_thread(cluster.forgets)
    cluster.read(path_of(made))
    is_open: list[bool] = []
    watch = loops.watch(
        LEASES.lstrip("/"), silence=60, on_open=lambda: is_open.append(True), resourceVersion=version(made)
    )
    with pytest.raises(Expired):
        await told(watch, 1)
    assert is_open == [True], "the watch itself tells it"
