"""A run's money is reckoned once for each try of Ensure, from what that has read: it takes no look at the cloud."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from airflow.sdk.exceptions import TaskDeferred

from airflow_gpu_provider.clouds.base import Plan
from airflow_gpu_provider.operators.ensure import EnsureGpuPoolOperator
from tests.sandbox.running import context_of
from tests.unit.scaling.model.night import Night


def counts(monkeypatch: pytest.MonkeyPatch, max_cost: float | None, *, tries: int = 1) -> Counter[str]:
    """Return how often a night looks at the cloud, reckons a budget and a bill, until its nodes have gone."""
    night, found = Night(price_per_hour=2.0), Counter[str]()
    lead, platform = night.lead, night.lead.platform

    def count(name: str, on: Any) -> None:
        call: Callable[..., Any] = getattr(on, name)
        monkeypatch.setattr(on, name, lambda *of, **more: (found.update([name]), call(*of, **more))[1])

    monkeypatch.setenv("AIRFLOW__GPU_PROVIDER__INSTALLATION_ID", "tests")
    monkeypatch.setattr("airflow_gpu_provider.scaling.apply.reconcile.open_pool", lambda *_, **__: lead)
    monkeypatch.setattr(
        platform, "plan", lambda nodes, read=platform.observe: Plan(pool=night.pool.name, groups=read())
    )
    monkeypatch.setattr(platform, "apply", lambda *_: None)
    for name, on in (("observe", platform), ("budget", lead), ("bill", lead.ledger)):
        count(name, on)
    for _ in range(tries):
        ensure = EnsureGpuPoolOperator(task_id="ensure", gpu_pool=night.pool, nodes=1, max_cost=max_cost)
        with suppress(TaskDeferred):
            ensure.execute(context_of(ensure))
        night.until_usable(1)
    (lease,) = lead.snapshot().leases
    lead.release(lease.key)
    night.until_gone()
    lead.ledger.bill(lease.key, platform, night.world.now)
    return found


def test_a_night_with_a_limit_looks_at_the_cloud_as_often_as_one_without(monkeypatch: pytest.MonkeyPatch) -> None:
    without = counts(monkeypatch, None)
    assert without["observe"] > 1
    assert without["bill"] == 1, "at its end"
    assert counts(monkeypatch, 80.0) - without == {"budget": 1}


def test_another_try_reckons_what_has_been_spent_once(monkeypatch: pytest.MonkeyPatch) -> None:
    without = counts(monkeypatch, None, tries=2)
    assert counts(monkeypatch, 80.0, tries=2) - without == {"budget": 2, "bill": 1}
