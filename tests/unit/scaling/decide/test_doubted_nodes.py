"""A node on which only one DAG's pods have failed by its GPU: it is replaced for that DAG, and stays for others."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_gpu_provider.cluster.model.gpu_evidence import Witness
from airflow_gpu_provider.pools.demand_key import DemandKey
from airflow_gpu_provider.scaling.decide.decisions import decide
from airflow_gpu_provider.scaling.decide.snapshot import PoolSnapshot, usable_nodes
from tests.unit.scaling.pools import NOW, lease, machine, node, pod, snapshot

FAILED_THERE = Witness(by="i/night", run="r", at="2026-01-01T02:00:00Z", what="Xid 79")


def doubted(*dags: str, **parts: object) -> PoolSnapshot:
    """Return a pool of one machine, wanted by a run of each of these DAGs, on which pods of "night" have failed."""
    keys = [DemandKey(installation="i", dag_id=dag, run_id="r", pool="train-gpu") for dag in dags]
    leases = tuple(replace(lease(key.dag_id), key=key) for key in keys)
    seen = snapshot(machine(1), leases=leases, nodes=(replace(node(1), doubt=FAILED_THERE),))
    return replace(seen, **parts).with_doubts()  # type: ignore[arg-type]


def test_it_is_replaced_where_nobody_but_that_dag_wants_nodes() -> None:
    seen = doubted("night")
    assert not usable_nodes(seen)
    assert "Xid 79 in night r" in str(decide(seen))


@pytest.mark.parametrize("dags", [("night", "day"), ("day",), ()])
def test_it_stays_for_others(dags: tuple[str, ...]) -> None:
    assert [each.bad_gpu for each in doubted(*dags).nodes] == [""]


def test_a_pod_of_an_unknown_run_is_one_of_the_others() -> None:
    notebook = pod("notebook", on=1)
    assert usable_nodes(doubted("night", pods=(notebook,)))


def test_a_group_whose_machines_others_add_keeps_its_node() -> None:
    kept = tuple(replace(group, when_idle="keep") for group in doubted("night").groups)
    assert usable_nodes(doubted("night", groups=kept))


def test_demand_that_is_over_is_nobodys() -> None:
    over = replace(lease("day"), until=NOW)
    both = (*doubted("night").leases, over)
    assert not usable_nodes(doubted(leases=both))
