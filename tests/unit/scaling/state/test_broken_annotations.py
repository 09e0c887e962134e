"""Annotations that anybody may have written: whatever their text, no reader raises what its caller does not expect."""

from __future__ import annotations

import base64
import json
import math
import zlib
from contextlib import suppress
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_gpu_provider.clouds.aws.autoscaling import LeaseMarks
from airflow_gpu_provider.cluster.api.gpu_health import BAD_GPU, why_bad
from airflow_gpu_provider.cluster.model.lease import LEASES, lease_manifest
from airflow_gpu_provider.cluster.model.pool_pod import GANG_LABEL, HANG, Pod
from airflow_gpu_provider.errors import GpuError
from airflow_gpu_provider.ledger import usage
from airflow_gpu_provider.ledger.ledger import machines_to_bill
from airflow_gpu_provider.money.bill import bill
from airflow_gpu_provider.money.run_usage import MachineUse
from airflow_gpu_provider.pools.demand_key import DemandKey
from airflow_gpu_provider.pools.gpu_pool import POOL_LABEL
from airflow_gpu_provider.reports.status import pool_status
from airflow_gpu_provider.scaling.end.janitor import look
from airflow_gpu_provider.scaling.end.other_pools import OtherPools
from airflow_gpu_provider.scaling.state.demand_leases import list_demand
from airflow_gpu_provider.scaling.state.gang_jobs import ADMITTED_AT
from airflow_gpu_provider.scaling.state.gang_requests import list_gang_jobs
from airflow_gpu_provider.scaling.state.lock import SPEC, PoolLock, list_pool_specs, read_memo
from airflow_gpu_provider.scaling.state.recent_writes import RecentWrites
from airflow_gpu_provider.sensors.former_blocks import FormerBlocks
from airflow_gpu_provider.untrusted import one_line
from tests.fakes.api_server import ApiServer
from tests.fakes.clients import FakeApiClient
from tests.unit.scaling.pools import NOW, groups, key, lease, machine, pool, snapshot

PREFIX = "airflow-gpu-provider/"
KEY = key("run")
DEEP = "[" * 100_000
ODD = [
    "",
    "nan",
    "inf",
    "-1",
    "1e400",
    "0001-01-01T00:00:00+14:00",
    "9999-12-31T23:59:59-12:00",
    "2026-03-01T02:00:00Z",
]
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(ODD)
JSON = st.recursive(SCALARS, lambda part: st.lists(part, max_size=4) | st.dictionaries(st.text(), part, max_size=4))
BOMB = f"zlib:{base64.b64encode(zlib.compress(b' ' * 2**26)).decode()}"
TEXTS = st.text() | JSON.map(json.dumps) | st.sampled_from([*ODD, DEEP, "not json", "NaN", "zlib:", "zlib:AAAA", BOMB])


def record(*names: str) -> st.SearchStrategy[str]:
    """The JSON of an object with some of these fields, of any values: what is nearly right."""
    return st.fixed_dictionaries({}, optional={name: JSON for name in names}).map(json.dumps)


NUMBERS = st.integers(-9, 9) | st.floats() | st.sampled_from(["3", "nan", "inf"])
TIMES = st.just("2026-03-01T02:00:00Z") | st.sampled_from(ODD) | JSON
PRICES = st.fixed_dictionaries({"at": TIMES, "per_hour": st.dictionaries(st.text(), NUMBERS)}).map(json.dumps)
BUDGET = st.fixed_dictionaries({"limit": NUMBERS, "spent": NUMBERS, "per_hour": NUMBERS, "at": TIMES}).map(json.dumps)
LARGER = st.fixed_dictionaries({"task_id": JSON, "map_index": NUMBERS, "instance_type": JSON, "nodes": NUMBERS})


def server_with(name: str, kind: str, notes: dict[str, str], *, labels: dict[str, str] | None = None) -> FakeApiClient:
    """A cluster with one Lease of this package in it."""
    server = ApiServer()
    labels = {POOL_LABEL: "train"} if labels is None else labels
    server.put(f"{LEASES}/{name}", lease_manifest(name, kind, labels=labels, notes=notes, spec={}))
    return FakeApiClient(server)


DEMAND = {
    "nodes": TEXTS,
    "until": TIMES.map(str) | TEXTS,
    "groups": TEXTS,
    "gang": TEXTS,
    "attempts": TEXTS,
    "attempt-since": TEXTS,
    "resume-at": TEXTS,
    "over-quota": TEXTS | record("at", "groups"),
    "prices": TEXTS | record("at", "per_hour", "unknown") | PRICES,
    "budget": TEXTS | record("limit", "spent", "at", "per_hour", "raised") | BUDGET,
    "larger": TEXTS | st.lists(LARGER).map(json.dumps),
    "extended": TEXTS,
    "unextended-until": TEXTS,
    "block": TEXTS,
    "run-id": TEXTS,
}


@given(notes=st.fixed_dictionaries({}, optional=DEMAND))
def test_demand_can_be_judged_reaped_and_shown(notes: dict[str, str]) -> None:
    broken = {f"{PREFIX}{name}": text for name, text in notes.items()}
    api: Any = server_with("demand-x", "demand", {**KEY.annotations, **broken})
    found = list_demand(api, "train")
    assert len(found) == 1
    seen = snapshot(machine(1), leases=(*found, lease("other")), spec=pool(price_per_hour=0.8))
    json.dumps(pool_status(seen, "here").to_json(), allow_nan=False)
    look(seen, "airflow", lambda run: True)


@given(limit=NUMBERS, spent=NUMBERS, per_hour=NUMBERS, share=st.floats(0, 1))
def test_a_budget_s_times_can_be_reckoned(limit: Any, spent: Any, per_hour: Any, share: float) -> None:
    text = json.dumps({"limit": limit, "spent": spent, "per_hour": per_hour, "at": "2199-12-31T23:59:59Z"})
    api: Any = server_with("demand-x", "demand", {**KEY.annotations, f"{PREFIX}budget": text})
    for each in (each.budget for each in list_demand(api) if each.budget):
        assert each.used_at(share) <= each.ends_at
        assert 0 <= each.left_at(NOW) <= each.limit < math.inf


@given(kind=st.sampled_from(["demand", "usage", "lock", "suspension"]), notes=st.dictionaries(st.text(), st.text()))
def test_a_lease_that_names_nothing_is_left_out(kind: str, notes: dict[str, str]) -> None:
    api: Any = server_with("x", kind, notes, labels={})
    assert not list_demand(api)
    assert not usage.read_runs(api, None)
    assert not list_pool_specs(api)
    assert not LeaseMarks(api).read([{"AutoScalingGroupName": "asg"}])


@given(text=TEXTS | record("sizes", "released", "upgraded"))
def test_recent_writes_can_be_applied(text: str) -> None:
    api: Any = server_with("lock-train", "lock", {f"{PREFIX}recent-writes": text})
    found = RecentWrites.parse(read_memo(api, "train"))
    with suppress(GpuError):  # a group that the cloud is said not to show yet
        found.with_upgraded(["a"], NOW).on(groups(pool(), machine(1)), NOW)
    with PoolLock(api, "train", "me") as lock:
        lock.check()


def test_writes_of_the_future_are_not_recent() -> None:
    text = json.dumps({"sizes": {"nowhere": [3, "2199-01-01T00:00:00Z"]}, "released": {"i-1": "2199-01-01T00:00:00Z"}})
    (group, *_) = RecentWrites.parse(text).on(groups(pool(), machine(1)), NOW)
    assert [each.state for each in group.machines] == ["running"]


SPAN = st.lists(TIMES, min_size=1, max_size=3)
COMPUTED = st.dictionaries(st.text(), st.lists(JSON, max_size=6))
USAGE = st.fixed_dictionaries(
    {},
    optional={
        "wanted": st.lists(SPAN) | JSON,
        "open": JSON,
        "worked": st.dictionaries(st.text(), st.lists(SPAN)) | JSON,
        "computed": COMPUTED | JSON,
        "prices": st.lists(TEXTS) | JSON,
        "billed_by": JSON,
    },
).map(json.dumps)
MACHINES = st.lists(
    st.fixed_dictionaries(
        {"id": JSON, "launched_at": TIMES, "seen_until": TIMES},
        optional={"node": JSON, "group": JSON, "market": JSON, "usable_at": TIMES},
    )
).map(json.dumps)


@given(run=TEXTS | USAGE, machines=TEXTS | MACHINES)
def test_use_can_be_billed_and_written_on(run: str, machines: str) -> None:
    api: Any = server_with(f"usage-{KEY.hash}", "usage", {**KEY.annotations, f"{PREFIX}usage": run})
    notes = {f"{PREFIX}machines": machines}
    api.server.put(f"{LEASES}/machines-train", lease_manifest("m", "machines", labels={}, notes=notes, spec={}))
    runs, seen = usage.read_runs(api, "train"), usage.read_machines(api, "train")
    to_bill = machines_to_bill(seen, (), runs, since=NOW, now=NOW, markets={})
    bill(pool(price_per_hour=0.8), KEY, runs, to_bill).to_json()

    usage.record_begin(api, KEY, NOW, NOW + timedelta(hours=1))
    usage.record_machines(api, "train", [MachineUse(id="i-9", launched_at=NOW, seen_until=NOW)])
    usage.record_end(api, KEY, NOW)
    assert not any(each.open for each in usage.read_runs(api, "train"))
    usage.delete_old_usage(api, "train", NOW)


SPEC_OF_OURS = pool(name="forgotten").serialize()


@given(
    text=TEXTS
    | record(*SPEC_OF_OURS)
    | st.builds(lambda name, value: json.dumps({**SPEC_OF_OURS, name: value}), st.sampled_from([*SPEC_OF_OURS]), JSON)
)
def test_a_spec_is_a_pool_or_a_line(text: str) -> None:
    api: Any = server_with("lock-forgotten", "lock", {SPEC: text}, labels={POOL_LABEL: "forgotten"})
    others = OtherPools([pool()])
    found = [*others.beside(pool(), api)]
    lines = [*others.left_out()]
    assert len(found) + len(lines) == (1 if text else 0)
    assert lines == [one_line(line) for line in lines]


@given(text=TEXTS | record("since", "pods", "shown_by") | record("boot", "why", "at"))
def test_pods_nodes_and_jobs_are_read(text: str) -> None:
    created = {"creationTimestamp": "2026-03-01T02:00:00Z", "namespace": "default", "name": "x", "labels": {}}
    names = (HANG, *(f"{PREFIX}{name}" for name in ("installation", "dag-id", "run-id", "block")))
    found = Pod.parse({"metadata": {**created, "annotations": dict.fromkeys(names, text)}})
    json.dumps(pool_status(snapshot(pods=(found,)), "here").to_json(), allow_nan=False)
    node = {"metadata": {**created, "annotations": {BAD_GPU: text}}, "status": {"nodeInfo": {"bootID": "b"}}}
    assert isinstance(why_bad(node), str)
    server = ApiServer()
    api: Any = FakeApiClient(server)
    labels = {POOL_LABEL: "train", GANG_LABEL: "2"}
    job = {"metadata": {"labels": labels, "annotations": {ADMITTED_AT: text}}, "spec": {"template": {"spec": {}}}}
    server.put("/apis/batch/v1/namespaces/default/jobs/x", job)
    list_gang_jobs(api, "train")


@pytest.mark.parametrize("text", [DEEP, "edited by hand", '{"kind": "tpu"}'])
def test_former_blocks_are_released_beside_what_is_broken(text: str) -> None:
    api: Any = server_with("lock-x", "lock", {SPEC: text}, labels={POOL_LABEL: "x"})
    former = DemandKey(installation="airflow", dag_id="dag", run_id="run", pool="x", block="old")
    for name, kind in (("demand-x", "demand"), ("usage-x", "usage")):
        notes = {**former.annotations, f"{PREFIX}{kind}": text, f"{PREFIX}nodes": text}
        manifest = lease_manifest(name, kind, labels={POOL_LABEL: "x"}, notes=notes, spec={})
        api.server.put(f"{LEASES}/{name}", manifest)
    said: list[str] = []
    here: Any = SimpleNamespace(api=api, pool=pool(), clock=SimpleNamespace(now=lambda: NOW))
    blocks = FormerBlocks(here=here, key=KEY, blocks={("train", "")}, connect=lambda pool: here, report=said.append)
    blocks.release()
    assert "block old on pool x" in blocks.unbilled()
    assert "pool x, in the cluster of pool train, is left out: its spec cannot be read" in said[0]
