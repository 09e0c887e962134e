"""When a pull is told of, and what would have helped there."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from airflow_gpu_provider import EksGpuPool, KubernetesGpuPool
from airflow_gpu_provider.pools import GpuPool
from airflow_gpu_provider.training.wait.pull import slow_pull
from tests.unit.clouds.google.test_gke_pool import pool as gke

EKS = EksGpuPool(name="gpu", cluster_name="ml", region="us-west-2", instance_types=("g6.xlarge",), max_nodes=1)
GKES = ("images={'streaming': True}",)
OWN = KubernetesGpuPool(name="gpu", nodes=("a",), gpus_per_node=1)


def phases(waited: float, pulled: float, started: float = 5, ran: float = 3600) -> list[dict[str, Any]]:
    pull = [{"phase": "image pull", "seconds": pulled, "image": "train:1", "bytes": 12 * 2**30}] if pulled else []
    rest = {"waited for a node": waited, "start": started, "ran": ran}
    return [{"phase": name, "seconds": seconds} for name, seconds in rest.items()] + pull


def test_it_says_how_long_it_took_and_of_how_much() -> None:
    told = slow_pull(phases(waited=455, pulled=370, started=15), EKS)
    assert told.startswith("the pull of train:1 took 6 min 10 s of 14 min 0 s to the start: ")
    assert "g6.xlarge has a local NVMe" in told


@pytest.mark.parametrize(
    ("waited", "pulled"), [(0, 0), (10, 59), (600, 120)], ids=["none", "less than a minute", "a small share"]
)
def test_nothing_is_said_of_a_short_one(waited: float, pulled: float) -> None:
    assert slow_pull(phases(waited, pulled), EKS) == ""


@pytest.mark.parametrize(
    ("pool", "remedies"),
    [
        (EKS, ["prefetch=", "fast_start=True", "local NVMe"]),
        (replace(EKS, instance_types=("p3.2xlarge",)), ["prefetch=", "fast_start=True"]),
        (replace(EKS, fast_start=True), ["prefetch="]),
        (replace(EKS, manage="scale", node_groups=("g",)), ["prefetch=", "local NVMe"]),
        (gke(), ["prefetch=", "images={'streaming': True}"]),
        (gke(images={"streaming": True}), ["prefetch="]),
        (OWN, ["prefetch="]),
    ],
)
def test_only_what_the_pool_can_have_is_advised(pool: GpuPool, remedies: list[str]) -> None:
    told = slow_pull(phases(waited=60, pulled=300), pool)
    assert [each for each in ("prefetch=", "fast_start=True", "local NVMe", *GKES) if each in told] == remedies
