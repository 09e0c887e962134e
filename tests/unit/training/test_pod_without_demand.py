"""A pod that no demand covers, in a pool that another DAG wants nodes of: created only where one spec serves both."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import TaskDeferred

from airflow_gpu_provider.errors import PoolDrift
from airflow_gpu_provider.scaling.decide import other_specs
from airflow_gpu_provider.scaling.state.demand import DemandLease
from airflow_gpu_provider.training.life import demand_spec, run
from tests.unit.scaling.pools import lease, pool
from tests.unit.training.pod_life import LATER, OWNER, Life
from tests.unit.training.pod_life import nodes as nodes
from tests.unit.training.test_pod_end import START

THEIRS = lease("theirs", allowed=pool().allowed, until=LATER + (LATER - START))
G5 = pool(instance_types=["g5.xlarge"])


def started(monkeypatch: pytest.MonkeyPatch, spec: Any, *demand: DemandLease) -> Life:
    """Its try, until its pod is waited for."""
    life = Life()
    life.cluster.pool = spec
    monkeypatch.setattr(run, "list_demand", lambda *_: demand)

    def opened(own: Any, **_: Any) -> Any:
        return SimpleNamespace(check_one_spec=lambda key: other_specs.check_one_spec(own, key, demand))

    monkeypatch.setattr(demand_spec, "open_pool", opened)
    with pytest.raises(TaskDeferred):
        life.tries.run()
    return life


def test_it_is_not_created_for_machines_that_another_dag_s_spec_excludes(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PoolDrift, match=r"DAG dag .*wants .* machine types g6\.xlarge instead of g5\.xlarge"):
        started(monkeypatch, G5, THEIRS)


@pytest.mark.parametrize(
    ("spec", "demand"),
    [
        (pool(), THEIRS),
        (G5, replace(THEIRS, until=START)),
        (G5, replace(THEIRS, allowed=None)),
        (G5, replace(THEIRS, key=replace(OWNER.key, run_id="yesterday"))),
    ],
    ids=["one spec", "over", "not recorded", "the DAG's own"],
)
def test_it_is_created_where_nothing_excludes_it(
    spec: Any, demand: DemandLease, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "create" in started(monkeypatch, spec, demand).steps
