"""The Reconciler on a real API server and the sandbox's AWS: from zero and back, several at once, and the next zone.

What it decides, and what it does for it, is tested in tests/unit/scaling/apply/test_reconcile.py, in virtual time.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from airflow_gpu_provider import EksGpuPool
from airflow_gpu_provider.pools.demand_key import DemandKey
from airflow_gpu_provider.pools.switch import SWITCH_MARGIN
from airflow_gpu_provider.scaling.apply.reconcile import Reconciler, open_pool
from airflow_gpu_provider.scaling.apply.writes import Outcome
from airflow_gpu_provider.scaling.decide.snapshot import usable_nodes
from gpu_sandbox.faults import Stockout
from gpu_sandbox.sandbox import Sandbox
from tests.sandbox.running import eventually

_names = (f"reconcile-{number}" for number in itertools.count())


@pytest.fixture(scope="module")
def env(gpu_sandbox: Sandbox) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in gpu_sandbox.env().items():
            patch.setenv(name, value)
        yield


class Night:
    """A pool of its own for one test, with its groups created, and what runs and people do with it."""

    def __init__(self, sandbox: Sandbox, **fields: Any) -> None:
        spec: dict[str, Any] = {
            "name": next(_names),
            "cluster_name": sandbox.cluster_name,
            "region": sandbox.region,
            "instance_types": ["g6.xlarge"],
            "zones": [sandbox.zones[0]],
            "max_nodes": 2,
        }
        self.pool = EksGpuPool(**{**spec, **fields})
        self.lead = self.reconciler("lead")
        self.lead.platform.apply(self.lead.platform.plan(1), print)
        eventually(lambda: all(group.status == "active" for group in self.lead.platform.observe()))

    def reconciler(self, holder: str) -> Reconciler:
        return open_pool(self.pool, owner="tests", holder=holder, report=print)

    def key(self, run_id: str) -> DemandKey:
        return DemandKey(installation="tests", dag_id="dag", run_id=run_id, pool=self.pool.name)

    def want(self, run_id: str) -> Outcome:
        return self.lead.want(self.key(run_id), 1, datetime.now(UTC) + timedelta(hours=1))

    def until(self, is_so: Callable[[Outcome], bool], seconds: float = 120.0) -> Outcome:
        """Reconcile until something is so."""
        seen: list[Outcome] = []

        def look() -> bool:
            seen[:] = [self.lead.reconcile()]
            # EKS may list a new group once, and then not for a moment.
            return bool(seen[0].snapshot.groups) and is_so(seen[0])

        eventually(look, seconds=seconds)
        return seen[0]

    def until_usable(self, nodes: int) -> Outcome:
        return self.until(lambda outcome: len(usable_nodes(outcome.snapshot)) == nodes)

    def until_gone(self) -> None:
        self.until(lambda outcome: not outcome.snapshot.nodes and not machines(outcome))

    def close(self) -> None:
        for lease in self.lead.snapshot().leases:
            self.lead.delete_demand_and_reconcile(lease.key)


@pytest.fixture
def nights(gpu_sandbox: Sandbox, env: None) -> Iterator[Callable[..., Night]]:
    opened: list[Night] = []

    def open_night(**fields: Any) -> Night:
        opened.append(Night(gpu_sandbox, **fields))
        return opened[-1]

    yield open_night
    gpu_sandbox.faults.clear()
    for night in opened:
        night.close()


def machines(outcome: Outcome) -> list[str]:
    return [machine.id for group in outcome.snapshot.groups for machine in group.live]


def test_from_zero_and_back(nights: Callable[..., Night]) -> None:
    night = nights()
    outcome = night.want("one")
    if not outcome.snapshot.groups:  # EKS does not list it yet, once more
        outcome = night.until(lambda outcome: bool(outcome.decision.grow))
    assert outcome.decision.grow == {outcome.snapshot.groups[0].name: 1}
    ready = night.until_usable(1)
    (lease,) = ready.snapshot.leases
    switch_at = ready.snapshot.groups[0].switch_at
    assert switch_at is not None
    assert timedelta(0) <= switch_at - lease.until - SWITCH_MARGIN <= timedelta(minutes=2)
    assert ready.decision.is_empty

    given_up = night.lead.delete_demand_and_reconcile(night.key("one"))
    assert len(given_up.decision.release) == 1
    night.until_gone()
    assert night.lead.snapshot().groups[0].desired == 0


def test_runs_that_come_and_go_at_once(nights: Callable[..., Night]) -> None:
    night = nights()

    def a_run(name: str) -> None:
        reconciler = night.reconciler(name)
        reconciler.want(night.key(name), 1, datetime.now(UTC) + timedelta(hours=1))
        eventually(lambda: usable_nodes(reconciler.reconcile().snapshot))
        reconciler.delete_demand_and_reconcile(night.key(name))

    with ThreadPoolExecutor(4) as runs:
        for done in [runs.submit(a_run, f"run-{number}") for number in range(4)]:
            done.result()
    night.until_gone()


@pytest.mark.parametrize("code", [None, "InsufficientFreeAddressesInSubnet"])
def test_the_next_zone_after_a_failed_launch(
    gpu_sandbox: Sandbox, nights: Callable[..., Night], code: str | None
) -> None:
    gpu_sandbox.faults.add(Stockout(zone=gpu_sandbox.zones[0], code=code))
    night = nights(zones=list(gpu_sandbox.zones[:2]))
    night.want("one")
    outcome = night.until_usable(1)
    assert usable_nodes(outcome.snapshot)[0].zone == gpu_sandbox.zones[1]
    night.until(lambda outcome: [group.desired for group in outcome.snapshot.groups] == [0, 1])
