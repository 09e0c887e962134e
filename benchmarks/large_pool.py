"""What a scale-down of a pool of a thousand nodes takes: requests, and seconds under the pool's lock.

`python -m benchmarks.large_pool` measures this alone, in a minute. Nothing but the package and threads is needed.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import timedelta

from airflow_gpu_provider import EksGpuPool
from airflow_gpu_provider.cluster.api.clock import Clock, SystemClock
from airflow_gpu_provider.pools.demand_key import DemandKey
from airflow_gpu_provider.scaling.apply.reconcile import Reconciler
from benchmarks.figure import Figure
from benchmarks.played_cloud import PlayedCloud, add_pod
from tests.fakes.api_server import ApiServer
from tests.fakes.clients import FakeApiClient
from tests.fakes.objects import Change

NODES = 1000
DAEMONS = 2  # pods on each node that come and go with it
OTHERS = 2000  # pods elsewhere in the cluster
LATENCY = 0.02


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What one decision took.

    Attributes:
        requests: How many there were, by verb and resource ("list pods") or by what the cloud did ("cloud release").
        locked_seconds: For how long the pool's lock was held.
        lock_writes: How often it was written.
    """

    seconds: float
    locked_seconds: float
    lock_writes: int
    requests: Counter[str]

    def reads(self) -> int:
        """Count what was asked of the cluster and the cloud."""
        return sum(n for what, n in self.requests.items() if what.startswith(("get", "list", "cloud observe")))


class LockTime:
    """How often a pool's lock was written, and for how long it was held, all holders together."""

    def __init__(self, server: ApiServer, clock: Clock) -> None:
        self._clock = clock
        self._held_since: float | None = None
        self.writes = 0
        self.seconds = 0.0
        server.when_changed(self._note)

    def reset(self) -> None:
        self.writes, self.seconds = 0, 0.0

    def _note(self, change: Change) -> None:
        if not change.key[1].startswith("lock-") or change.after is None:
            return
        self.writes += 1
        is_held, now = bool(change.after["spec"].get("holderIdentity")), self._clock.monotonic()
        if is_held and self._held_since is None:
            self._held_since = now
        elif not is_held and self._held_since is not None:
            self.seconds += now - self._held_since
            self._held_since = None


class LargePool:
    """A pool whose nodes a run wants; busy: with a pod of somebody's on each."""

    def __init__(
        self,
        nodes: int,
        *,
        busy: bool,
        others: int = OTHERS,
        latency: float = LATENCY,
        cloud_latency: float | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.pool = EksGpuPool(
            name="large", cluster_name="ml", region="us-west-2", instance_types=("g6.xlarge",), max_nodes=nodes
        )
        self.clock = clock or SystemClock()
        self.server = ApiServer(self.clock.now)
        self.cloud = PlayedCloud(self.pool, self.server, nodes, latency=cloud_latency or latency, clock=self.clock)
        self._lock = LockTime(self.server, self.clock)
        for number in range(nodes):
            for daemon in range(DAEMONS):
                add_pod(self.server, f"daemon-{number}-{daemon}", f"node-i-{number}", daemon=True)
            if busy:
                add_pod(self.server, f"training-{number}", f"node-i-{number}", daemon=False, gpus=1)
        for number in range(others):
            add_pod(self.server, f"other-{number}", f"node-elsewhere-{number % 100}", daemon=False)
        self.reconciler = Reconciler(
            self.pool,
            self.cloud,
            FakeApiClient(self.server, latency=latency, clock=self.clock),  # type: ignore[arg-type]
            holder="bench",
            report=print,
            clock=clock,
        )
        self.key = DemandKey(installation="bench", dag_id="bench", run_id="1", pool=self.pool.name)
        self.reconciler.want(self.key, nodes, self.clock.now() + timedelta(hours=1))

    @property
    def requests(self) -> Counter[str]:
        """What was asked of the cluster and the cloud since `forget`."""
        ours = Counter(f"{request.verb} {request.resource}" for request in [*self.server.requests])
        return ours + Counter({f"cloud {what}": number for what, number in self.cloud.calls.items()})

    def forget(self) -> None:
        """Count anew."""
        self.server.requests.clear()
        self.cloud.calls.clear()
        self._lock.reset()

    def give_up(self) -> Decision:
        """Take the run's demand away: one decision."""
        self.forget()
        at = self.clock.monotonic()
        self.reconciler.delete_demand_and_reconcile(self.key)
        return Decision(
            seconds=self.clock.monotonic() - at,
            locked_seconds=self._lock.seconds,
            lock_writes=self._lock.writes,
            requests=self.requests,
        )


def measure() -> list[Figure]:
    """Return what decisions took: where each node is in use, and where each is to go."""
    figures = []
    pool = LargePool(NODES, busy=True)
    kept = pool.give_up()
    name = f"scale-down decision, {NODES} nodes in use"
    figures += [
        Figure(name=f"{name}: seconds under the lock", unit="s", ours=kept.locked_seconds, peer=None, n=1),
        Figure(name=f"{name}: requests", unit="requests", ours=kept.requests.total(), peer=None, n=1),
    ]
    pool, took = LargePool(NODES, busy=False), []
    while pool.cloud.machines:
        took.append(pool.give_up())
    name = f"scale-down of {NODES} idle nodes"
    reads = sum(each.reads() for each in took)
    longest = max(each.locked_seconds for each in took)
    return [
        *figures,
        Figure(name=f"{name}: longest time under the lock", unit="s", ours=longest, peer=None, n=len(took)),
        Figure(name=f"{name}: all of it", unit="s", ours=sum(each.seconds for each in took), peer=None, n=1),
        Figure(name=f"{name}: what is read", unit="requests", ours=reads, peer=None, n=1),
        Figure(
            name=f"{name}: what is written beside a cordon and a call to the cloud for each",
            unit="requests",
            ours=sum(each.requests.total() for each in took) - reads - 2 * NODES,
            peer=None,
            n=1,
        ),
    ]


if __name__ == "__main__":
    from benchmarks.figure import table

    print("\n".join(table(measure())))
