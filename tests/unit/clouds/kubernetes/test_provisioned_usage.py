"""What machines cost that Karpenter keeps after the run: it is the run's, until they are gone."""

from __future__ import annotations

from datetime import timedelta

from airflow_gpu_provider.pools.demand_key import DemandKey
from airflow_gpu_provider.scaling.apply.reconcile import Reconciler
from tests.fakes.clients import FakeApiClient
from tests.fakes.clock import VirtualClock
from tests.unit.clouds.kubernetes.karpenter import Cluster, condition, pool

RUN = DemandKey(installation="airflow", dag_id="dag", run_id="run", pool="train")


def test_a_machine_is_on_the_bill_at_its_own_price_as_long_as_karpenter_keeps_it() -> None:
    clock, cluster = VirtualClock(), Cluster()
    cluster.node_pool()
    spec = pool(price_per_hour={"SPOT": 1.0, "ON_DEMAND": 3.0})
    api, platform = FakeApiClient(cluster.server), cluster.platform()
    on = Reconciler(spec, platform, api, holder="test", report=print, clock=clock)  # type: ignore[arg-type]
    on.want(RUN, 1, clock.now() + timedelta(hours=6))
    done = (condition("Registered"), condition("Initialized"))
    cluster.launched("gpu-aaaaa", *done, nodeName="node-a", ago=0)
    cluster.node("node-a", "i-gpu-aaaaa", ago=0)
    clock.sleep(60)
    on.release(RUN)
    for _ in range(60):  # a look every ten seconds, as long as the node stays
        clock.sleep(10)
        on.reconcile()
    writes = sum(each.verb == "update" and "machines" in each.path for each in cluster.server.requests)
    assert 0 < writes <= 25, "now and then, not at each look"
    cluster.server.remove("api/v1/nodes/node-a")
    cluster.server.remove("apis/karpenter.sh/v1/nodeclaims/gpu-aaaaa")
    bill = on.ledger.bill(RUN, on.platform, clock.now())
    assert 600 <= bill.total_seconds <= 660
    assert {lane.machine.market for lane in bill.lanes} == {"SPOT"}
    assert bill.total_cost is not None
    assert bill.total_cost < 0.2


def wanted() -> tuple[VirtualClock, Cluster, Reconciler]:
    """A pool of Karpenter's, of which a run wants one node."""
    clock, cluster = VirtualClock(), Cluster()
    cluster.node_pool()
    api = FakeApiClient(cluster.server)
    on = Reconciler(pool(), cluster.platform(), api, holder="test", report=print, clock=clock)  # type: ignore[arg-type]
    on.want(RUN, 1, clock.now() + timedelta(hours=6))
    return clock, cluster, on


def looks(on: Reconciler, clock: VirtualClock, seconds: int) -> None:
    """As the scale-down does: a look every ten seconds."""
    for _ in range(seconds // 10):
        clock.sleep(10)
        on.reconcile()


def test_a_machine_is_paid_for_while_karpenter_drains_it_and_not_while_it_shuts_down() -> None:
    """The cloud is told to end it once its node is drained; from then on EC2 asks for nothing."""
    clock, cluster, on = wanted()
    done = (condition("Registered"), condition("Initialized"))
    cluster.launched("gpu-aaaaa", *done, nodeName="node-a", ago=0)
    cluster.node("node-a", "i-gpu-aaaaa", ago=0)
    clock.sleep(60)
    on.release(RUN)
    cluster.launched("gpu-aaaaa", *done, condition("Drained", "False"), nodeName="node-a", ago=0, deleting=True)
    looks(on, clock, 300)
    cluster.launched("gpu-aaaaa", *done, condition("InstanceTerminating"), nodeName="node-a", ago=0, deleting=True)
    looks(on, clock, 300)
    bill = on.ledger.bill(RUN, on.platform, clock.now())
    assert 330 <= bill.total_seconds <= 370
    assert bill.machines == 1


def test_a_claim_that_goes_before_it_had_a_machine_costs_nothing() -> None:
    clock, cluster, on = wanted()
    cluster.claim("gpu-aaaaa", condition("Launched", "Unknown"), ago=0, deleting=True)
    looks(on, clock, 60)
    on.release(RUN)
    assert on.ledger.bill(RUN, on.platform, clock.now()).machines == 0
