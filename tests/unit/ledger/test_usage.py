"""The ledger of a large pool: what is known of thousands of machines and pods fits into a Lease each."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow_gpu_provider.cluster.model.lease import LEASES
from airflow_gpu_provider.cluster.model.pool_pod import Pod
from airflow_gpu_provider.ledger.usage import read_machines, read_runs, record_begin, record_machines, record_pods
from airflow_gpu_provider.money.run_usage import MachineUse
from airflow_gpu_provider.pools.demand_key import DemandKey
from tests.fakes.api_server import ApiServer
from tests.fakes.clients import FakeApiClient

NOW = datetime(2026, 3, 1, 2, tzinfo=UTC)
ANNOTATIONS_AT_MOST = 256 * 1024  # bytes, all of an object's together: Kubernetes' own limit
KEY = DemandKey(installation="airflow", dag_id="dag", run_id="run", pool="large")


def size(server: ApiServer, name: str) -> int:
    return sum(len(k) + len(v) for k, v in server.read(f"{LEASES}/{name}")["metadata"]["annotations"].items())


def test_machines_of_some_nights_of_a_thousand_nodes_fit_into_a_lease() -> None:
    server = ApiServer()
    cluster: Any = FakeApiClient(server)
    draw = random.Random(1)
    seen = {}
    for night in range(3):
        at = NOW + timedelta(hours=12 * night)
        machines = [
            MachineUse(
                id=f"i-{draw.getrandbits(68):017x}",
                node=f"ip-10-{draw.randrange(256)}-{draw.randrange(256)}-{draw.randrange(256)}.ec2.internal",
                group="large-us-west-2a-g6-xlarge-spot",
                market="SPOT",
                launched_at=at + timedelta(seconds=draw.randrange(600)),
                usable_at=at + timedelta(seconds=600 + draw.randrange(300)),
                seen_until=at + timedelta(hours=2),
            )
            for _ in range(1000)
        ]
        record_machines(cluster, "large", machines)
        seen |= {each.id: each for each in machines}
    assert size(server, "machines-large") < ANNOTATIONS_AT_MOST
    assert {each.id: each for each in read_machines(cluster, "large")} == seen


def test_what_a_run_s_pods_did_is_written_once_for_all_and_fits_too() -> None:
    server = ApiServer()
    cluster: Any = FakeApiClient(server)
    record_begin(cluster, KEY, NOW, NOW + timedelta(hours=6))
    pods = [
        Pod(
            namespace="default",
            name=f"pod-{number}",
            node=f"ip-10-1-{number // 256}-{number % 256}.ec2.internal",
            phase="Running",
            gpus=1,
            owner=KEY,
            created_at=NOW,
            started_at=NOW + timedelta(seconds=number),
        )
        for number in range(3000)
    ]
    server.requests.clear()
    record_pods(cluster, pods, NOW + timedelta(hours=2))
    assert len(server.requests) == 2
    assert size(server, f"usage-{KEY.hash}") < ANNOTATIONS_AT_MOST
    (usage,) = read_runs(cluster, "large")
    assert len(usage.worked) == 3000
