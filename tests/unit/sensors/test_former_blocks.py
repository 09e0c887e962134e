"""Blocks that a DAG does not have any more: their demand is given up by the run's other scale-downs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG, task_group

from airflow_gpu_provider import EksGpuPool, GpuPodOperator, gpu_nodes
from airflow_gpu_provider.errors import ClusterUnreachable
from airflow_gpu_provider.money.run_usage import RunUsage
from airflow_gpu_provider.pools.demand_key import DemandKey
from airflow_gpu_provider.scaling.state.lock import KeptSpec
from airflow_gpu_provider.sensors.former_blocks import FormerBlocks, blocks_of

NOW = datetime(2026, 1, 1, tzinfo=UTC)
RUN = DemandKey(installation="here", dag_id="nightly", run_id="tonight", pool="new", block="new")


def pool(name: str) -> EksGpuPool:
    return EksGpuPool(name=name, cluster_name="k8s-ml", region="us-west-2", instance_types=["g6.xlarge"], max_nodes=2)


def key(pool_name: str, block: str, **other: str) -> DemandKey:
    return DemandKey(
        **{"installation": "here", "dag_id": "nightly", "run_id": "tonight", **other}, pool=pool_name, block=block
    )


def test_a_dag_s_blocks_are_known_by_their_pools_and_names() -> None:
    @task_group
    def city(name: str) -> None:
        with gpu_nodes(pool("a")):
            GpuPodOperator(task_id="train", image="busybox")

    with DAG("nightly", schedule=None) as dag:
        city.expand(name=["oslo"])
        with gpu_nodes(pool("b"), group_id="second"):
            GpuPodOperator.partial(task_id="sweep", image="busybox").expand(arguments=[["1"]])
        GpuPodOperator(task_id="alone", image="busybox", gpu_pool=pool("b"))
    assert blocks_of(dag) == {("a", "city.a"), ("b", "second"), ("b", "")}


def test_blocks_that_only_the_run_knows_are_not_guessed() -> None:
    with DAG("nightly", schedule=None) as dag, gpu_nodes(pool("{{ dag_run.conf['pool'] }}"), group_id="gpus"):
        GpuPodOperator(task_id="train", image="busybox")
    assert blocks_of(dag) is None
    assert not blocks_of(None)


class Cluster:
    """Demand and pods of a cluster, and what is given up of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, demand: Sequence[DemandKey]) -> None:
        self.demand = list(demand)
        self.with_pods: set[DemandKey] = set()
        self.given_up: list[DemandKey] = []
        self.said: list[str] = []
        leases = lambda api: [SimpleNamespace(key=each) for each in self.demand]  # noqa: E731
        monkeypatch.setattr("airflow_gpu_provider.sensors.former_blocks.list_demand", leases)
        monkeypatch.setattr("airflow_gpu_provider.sensors.former_blocks.list_run_pods", self._pods)
        kept = [KeptSpec(name="old", lock="uid-of-old", text=json.dumps(pool("old").serialize()))]
        monkeypatch.setattr("airflow_gpu_provider.scaling.end.other_pools.list_pool_specs", lambda api: kept)

    def connect(self, to: Any) -> Any:
        clock = SimpleNamespace(now=lambda: NOW)
        how: dict[str, Any] = {"api": None, "clock": clock, "platform": None}
        return SimpleNamespace(pool=to, delete_demand_and_reconcile=self._give_up, **how)

    def unbilled(self, blocks: Any, *used: RunUsage) -> str:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("airflow_gpu_provider.sensors.former_blocks.read_runs", lambda api, pool_name: used)
            return self.former(blocks).unbilled()

    def release(self, blocks: Any) -> list[DemandKey]:
        self.former(blocks).release()
        return self.given_up

    def former(self, blocks: Any) -> FormerBlocks:
        here = self.connect(pool("new"))
        return FormerBlocks(here=here, key=RUN, blocks=blocks, connect=self.connect, report=self.said.append)

    def _pods(self, api: Any, selector: Any, run: str) -> list[Any]:
        return [SimpleNamespace(holds_node=lambda now: True) for each in self.with_pods if each.hash == run]

    def _give_up(self, former: DemandKey) -> Any:
        if "unreachable" in former.block:
            raise ClusterUnreachable("gone.", "Wait.")
        self.given_up.append(former)
        return SimpleNamespace(log_lines=("releases node-1",))


def test_what_a_renamed_block_wanted_is_given_up_and_nobody_else_s(monkeypatch: pytest.MonkeyPatch) -> None:
    renamed_pool, renamed_block = key("old", "old"), key("new", "before")
    others = [
        key("new", "new"),
        key("new", "each[3]"),
        key("old", "old", run_id="last night"),
        key("old", "old", dag_id="weekly"),
        key("old", "old", installation="there"),
        key("never heard of", "x"),
    ]
    cluster = Cluster(monkeypatch, [renamed_pool, *others, renamed_block])
    assert cluster.release({("new", "new"), ("new", "each")}) == [renamed_pool, renamed_block]
    assert "pool old: releases node-1" in cluster.said


def test_a_task_s_own_demand_is_its_block_s(monkeypatch: pytest.MonkeyPatch) -> None:
    """A gang that waits for its turn has no pod yet that would speak for it."""
    alone, in_block = key("new", "").of_task("train", -1), key("new", "new").of_task("train", 3)
    former = key("old", "old").of_task("train", -1)
    cluster = Cluster(monkeypatch, [alone, in_block, former])
    assert cluster.release({("new", "new"), ("new", "")}) == [former]


def test_pods_that_are_still_there_keep_their_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(monkeypatch, [key("old", "old")])
    cluster.with_pods.add(key("old", "old"))
    assert cluster.release({("new", "new")}) == []
    assert "its nodes stay for them" in cluster.said[0]


def test_an_error_is_told_and_does_not_hide_how_the_block_was_released(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(monkeypatch, [key("old", "unreachable")])
    assert cluster.release({("new", "new")}) == []
    assert "may be left over: gone." in cluster.said[-1]


def usage(of: DemandKey, *, lasts: bool = False, **more: Any) -> RunUsage:
    until = NOW + timedelta(hours=1 if lasts else -1)
    return RunUsage(key=of, wanted=((NOW - timedelta(hours=2), until),), open=lasts, worked={}, **more)


def test_the_bills_of_other_blocks_lack_what_former_ones_used(monkeypatch: pytest.MonkeyPatch) -> None:
    used = [usage(key("old", "old")), usage(key("new", "before"), lasts=True), usage(key("new", "new"))]
    found = Cluster(monkeypatch, []).unbilled({("new", "new")}, *used, usage(key("old", "old", run_id="last night")))
    assert found == "the run used block before on pool new, block old on pool old too, which the DAG no longer has"
    assert Cluster(monkeypatch, []).unbilled({("new", "new")}, usage(key("new", "new"))) == ""


def test_what_cannot_be_read_is_lacking(monkeypatch: pytest.MonkeyPatch) -> None:
    def away(api: Any, pool_name: None) -> Any:
        raise ClusterUnreachable("It does not answer.", "Wait.")

    monkeypatch.setattr("airflow_gpu_provider.sensors.former_blocks.read_runs", away)
    assert "could not be read (It does not answer." in Cluster(monkeypatch, []).former({("new", "new")}).unbilled()
