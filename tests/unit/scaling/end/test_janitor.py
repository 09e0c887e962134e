"""What the janitor calls a leftover: only what no live run, no other Airflow and no stranger's pod wants."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_gpu_provider import EksGpuPool, GkeGpuPool, KubernetesGpuPool
from airflow_gpu_provider.cluster.model.code_record import CodeRecord
from airflow_gpu_provider.cluster.model.lease import LEASES, lease_manifest
from airflow_gpu_provider.errors import ConnectionNotFound
from airflow_gpu_provider.pools import GpuPool
from airflow_gpu_provider.pools.demand_key import DemandKey
from airflow_gpu_provider.pools.gpu_pool import POOL_LABEL
from airflow_gpu_provider.scaling.decide.snapshot import PoolSnapshot
from airflow_gpu_provider.scaling.end.janitor import Findings, look, reap_pools
from airflow_gpu_provider.scaling.state.lock import SPEC, KeptSpec, list_pool_specs
from tests.fakes.api_server import ApiServer
from tests.fakes.clients import FakeApiClient
from tests.unit.scaling.pools import A, key, lease, machine, pod, pool, snapshot

HERE = key("any").installation


def find(seen: PoolSnapshot, *over: str, installation: str = HERE) -> Findings:
    return look(seen, installation, lambda run: run.run_id in over)


def test_code_of_a_run_that_is_over_is_left_and_no_other() -> None:
    key_of = {name: key(name) for name in ("dead", "alive")}
    code = [CodeRecord(key=each, task=name, try_id=name, namespace="ml", maps=1) for name, each in key_of.items()]
    without_demand = look(snapshot(), HERE, lambda run: run.run_id == "dead", code)
    assert without_demand.code == (code[0],)
    assert [(each.kind, each.name) for each in without_demand.leftovers] == [("code", f"ml/{code[0].name}")]
    assert not look(snapshot(), "another", lambda run: True, code).leftovers


def kinds(findings: Findings) -> list[str]:
    return [each.kind for each in findings.leftovers]


def test_a_run_that_is_over_leaves_its_lease_its_pods_and_its_machine() -> None:
    seen = snapshot(
        machine(1),
        machine(2),
        leases=(lease("dead"), lease("alive")),
        pods=(pod("of-dead", on=1, run="dead"), pod("of-alive", on=2, run="alive")),
        spec=pool(price_per_hour=0.8),
    )
    found = find(seen, "dead")
    assert kinds(found) == ["lease", "pod", "machine"]
    assert [str(each) for each in found.pods] == ["default/of-dead"]
    (gone,) = (each for each in found.leftovers if each.kind == "machine")
    assert (gone.name, gone.cost, gone.age_seconds) == (f"node node-1 of {A}", 0.8, 3600.0)
    assert kinds(find(seen)) == []


def test_the_same_ids_in_another_airflow_are_another_run() -> None:
    seen = snapshot(machine(1), leases=(lease("dead"),), pods=(pod("train", on=1, run="dead"),))
    assert kinds(find(seen, "dead", installation="another")) == []
    assert kinds(find(seen, "dead", installation="")) == []


def test_pods_without_demand_are_asked_for_by_the_run_that_they_name() -> None:
    named = pod("late", on=1, run="dead", owner=key("dead"))
    unnamed = pod("old", on=2, run="dead")
    found = find(snapshot(machine(1), machine(2), pods=(named, unnamed)), "dead")
    assert found.pods == (named,)
    assert kinds(found) == ["pod", "machine"]


def test_size_that_nobody_wants_is_told() -> None:
    seen = snapshot(leases=(lease("dead"),), train_a_g6_xlarge={"desired": 1})
    assert kinds(find(seen, "dead")) == ["lease", "size"]


def test_airflow_is_asked_once_for_each_run() -> None:
    asked: list[DemandKey] = []
    pods = tuple(pod(f"p{number}", on=1, run="one", owner=key("one")) for number in range(3))
    look(snapshot(machine(1), leases=(lease("one"),), pods=pods), HERE, lambda run: bool(asked.append(run)))
    assert asked == [key("one")]


@given(
    over=st.sets(st.sampled_from(["a", "b", "c"])),
    wants=st.dictionaries(st.sampled_from(["a", "b", "c"]), st.integers(0, 2)),
    runs_on=st.dictionaries(st.integers(1, 4), st.sampled_from(["a", "b", "c", ""])),
)
def test_what_lives_keeps_its_pods_and_enough_machines(
    over: set[str], wants: dict[str, int], runs_on: dict[int, str]
) -> None:
    """Whoever is over: no pod of a living run, nor of nobody, is found, and machines enough for them stay."""
    pods = tuple(
        replace(pod(f"p{on}", on=on, run=run or None), owner=key(run) if run else None) for on, run in runs_on.items()
    )
    leases = tuple(lease(run, nodes=nodes) for run, nodes in wants.items())
    machines = tuple(machine(number) for number in range(1, 5))
    found = find(snapshot(*machines, leases=leases, pods=pods), *over)

    living = {each for each in pods if not each.owner or each.owner.run_id not in over}
    assert not living & set(found.pods)
    assert {each.key.run_id for each in found.leases} == over & set(wants)
    gone = {each.name for each in found.leftovers if each.kind == "machine"}
    assert not {f"node {each.node} of {A}" for each in living} & gone
    wanted = min(4, sum(nodes for run, nodes in wants.items() if run not in over))
    assert len(machines) - len(gone) >= wanted


class Cluster:
    """One cluster, whose locks keep these specs, reached by any connection but those that are `away`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *kept: GpuPool, away: Sequence[str] = ()) -> None:
        specs = [
            KeptSpec(name=each.name, lock=f"uid-of-{each.name}", text=json.dumps(each.serialize())) for each in kept
        ]
        monkeypatch.setattr("airflow_gpu_provider.scaling.end.other_pools.list_pool_specs", lambda api: specs)
        self._away = away
        self.api: Any = None
        self.said: list[str] = []

    def look_at(self, *pools: GpuPool) -> list[str]:
        """Return which pools were looked at; `said` then has what is said of others."""
        self.said.clear()
        reaped = reap_pools(
            pools,
            self._connect,
            installation=HERE,
            run_is_over=lambda run: False,
            dry_run=True,
            others=True,
            timeout=timedelta(0),
            report=self.said.append,
        )
        self.said = [line for line in self.said if "left out" in line]
        return [each.pool for each in reaped if not each.error]

    def _connect(self, to: Any) -> Any:
        if getattr(to, "aws_conn_id", "") in self._away:
            raise ConnectionNotFound("It is not there.")
        platform = SimpleNamespace(account=lambda: "here")
        return SimpleNamespace(pool=to, api=self.api, platform=platform, snapshot=lambda: snapshot(), code=tuple)


def external(name: str, **groups: Any) -> EksGpuPool:
    return pool(name=name, manage="scale", instance_types=(), **groups)


GKE = {"cluster_name": "ml", "project_id": "ml-project", "location": "us-central1", "max_nodes": 1}
BARE = {"cordon_when_idle": True}


@pytest.mark.parametrize(
    ("named", "forged", "line"),
    [
        (pool(), external("forged", asg_names=["any-asg"]), "asg_names=any-asg"),
        (pool(), external("forged", node_groups=["team-b-web"]), "node_groups=team-b-web"),
        (
            external("train", node_groups=["ours"]),
            external("forged", asg_names=["ours"]),
            "asg_names=ours",
        ),
        (
            GkeGpuPool(name="train", machine_types=["g2-standard-4"], **GKE),
            GkeGpuPool(name="forged", manage="scale", node_pools=["web"], **GKE),
            "node_pools=web",
        ),
        (
            KubernetesGpuPool(name="train", nodes=["gpu-1"], **BARE),
            KubernetesGpuPool(name="forged", nodes=["gpu-1", "web-1"], **BARE),
            "nodes=web-1",
        ),
        (
            KubernetesGpuPool(name="train", nodes=["gpu-1"], **BARE),
            KubernetesGpuPool(name="forged", node_selector_labels={"role": "web"}, **BARE),
            "node_selector_labels=role=web",
        ),
    ],
)
def test_a_lease_does_not_choose_which_machines_of_others_are_changed(
    monkeypatch: pytest.MonkeyPatch, named: GpuPool, forged: GpuPool, line: str
) -> None:
    """Whoever may write Leases in the namespace does not have the janitor's rights in the cloud, nor on nodes."""
    cluster = Cluster(monkeypatch, forged)
    assert cluster.look_at(named) == ["train"]
    why = f"it scales {line}, which none of the pools that were named here does"
    assert cluster.said == [f"pool forged, in the cluster of pool train, is left out: {why}"]


def test_a_forgotten_pool_of_groups_that_a_named_one_has_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    named = [external("one", node_groups=["a"]), external("two", asg_names=["b"])]
    cluster = Cluster(monkeypatch, external("forgotten", node_groups=["a"], asg_names=["b"]))
    assert cluster.look_at(*named) == ["one", "two", "forgotten"]
    elsewhere = external("one", node_groups=["a"], cluster_name="another")
    assert cluster.look_at(elsewhere, pool()) == ["one", "train"]
    assert len(cluster.said) == 1


FORGOTTEN = pool(name="forgotten").serialize()


@pytest.mark.parametrize(
    "text",
    [
        "edited by hand",
        "[" * 100_000,
        "[]",
        '{"kind": ["eks"]}',
        json.dumps({"kind": "eks", "name": "forgotten"}),
        json.dumps({**FORGOTTEN, "max_nodes": None}),
        json.dumps({**FORGOTTEN, "taints": [{}]}),
        json.dumps({**FORGOTTEN, "name": "another"}),
        json.dumps({**FORGOTTEN, "max_nodes": "{{ 1 }}"}),
    ],
)
def test_a_spec_that_somebody_broke_ends_no_janitor(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    server = ApiServer()
    for name, labels in (("lock-forgotten", {POOL_LABEL: "forgotten"}), ("lock-nobody-s", {})):
        server.put(f"{LEASES}/{name}", lease_manifest(name, "lock", labels=labels, notes={SPEC: text}, spec={}))
    cluster = Cluster(monkeypatch)
    monkeypatch.setattr("airflow_gpu_provider.scaling.end.other_pools.list_pool_specs", list_pool_specs)
    cluster.api = FakeApiClient(server)
    three = [pool(name=f"one-{number}") for number in range(3)]
    assert cluster.look_at(*three) == ["one-0", "one-1", "one-2"]
    assert ["its spec cannot be read: " in line for line in cluster.said] == [True, True]


ONES = [pool(name=f"one-{number}", aws_conn_id=f"conn_{number}") for number in range(4)]


def test_pools_that_are_looked_at_by_connections_of_their_own_are_not_called_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = Cluster(monkeypatch, *ONES)
    assert cluster.look_at(*ONES) == [each.name for each in ONES]
    assert cluster.said == []


def test_a_pool_that_nobody_looked_at_is_named_once(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(monkeypatch, *ONES)
    assert cluster.look_at(*ONES[:3]) == [each.name for each in ONES[:3]]
    assert cluster.said == ["pool one-3, in the cluster of pool one-0, is left out: its runs use another connection"]


def test_a_forgotten_pool_is_looked_at_by_whoever_has_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    forgotten = pool(name="forgotten", aws_conn_id="conn_1")
    cluster = Cluster(monkeypatch, *ONES[:2], forgotten)
    assert cluster.look_at(*ONES[:2]) == ["one-0", "one-1", "forgotten"]
    assert cluster.said == []


def test_a_pool_whose_last_run_used_another_connection_was_looked_at_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = Cluster(monkeypatch, ONES[0], pool(name="one-1", aws_conn_id="before"))
    assert cluster.look_at(*ONES[:2]) == ["one-0", "one-1"]
    assert cluster.said == []


def test_a_pool_whose_connection_fails_has_its_error_only(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(monkeypatch, *ONES[:2], away=["conn_1"])
    assert cluster.look_at(*ONES[:2]) == ["one-0"]
    assert cluster.said == []


def test_a_spec_that_cannot_be_read_is_named_once(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(monkeypatch)
    odd = [KeptSpec(name="odd", lock="uid-of-odd", text='{"kind": "tpu"}')]
    monkeypatch.setattr("airflow_gpu_provider.scaling.end.other_pools.list_pool_specs", lambda api: odd)
    cluster.look_at(*ONES)
    (line,) = cluster.said
    assert line.startswith("pool odd, in the cluster of pool one-0, is left out: its spec cannot be read: ")
