"""Why several groups of a pool are of no use: what they have in common is said once."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from airflow_gpu_provider import GkeGpuPool
from airflow_gpu_provider.clouds.google.owned_platform import _all_failed
from airflow_gpu_provider.clouds.group_checks import by_reason
from airflow_gpu_provider.errors import GroupFailed, PermissionDenied, QuotaExceeded
from airflow_gpu_provider.scaling.wait.nodes_wait import NodesWait
from tests.unit.scaling.pools import NOW, A, B, C, key, lease, pool, snapshot

DENIED = "AccessDenied: node role: the instance profile is missing"
GKE = GkeGpuPool(
    name="train",
    cluster_name="ml",
    location="us-central1",
    project_id="my-project",
    machine_types=["g2-standard-4"],
    max_nodes=1,
)


def test_a_reason_that_several_groups_have_is_said_once() -> None:
    assert by_reason({A: DENIED, B: "quota.", C: DENIED}) == f"{A}, {C}: {DENIED}; {B}: quota"


def test_the_group_s_own_name_in_the_cloud_s_words_makes_no_other_reason() -> None:
    said = by_reason({"train-a": "cannot create train-a: no role.", "train-b": "cannot create train-b: no role."})
    assert said == "train-a, train-b: cannot create train-a: no role"


def test_gke_s_error_says_it_once_and_keeps_its_type() -> None:
    error = _all_failed(GKE, {A: PermissionDenied("It may not.", "Grant it."), B: PermissionDenied("It may not.")})
    assert isinstance(error, PermissionDenied)
    assert error.what == f"Pool train has no usable node pool: {A}, {B}: It may not."
    mixed = _all_failed(GKE, {A: PermissionDenied("It may not."), B: QuotaExceeded("None left.")})
    assert (type(mixed), mixed.what) == (
        GroupFailed,
        f"Pool train has no usable node pool: {A}: It may not; {B}: None left.",
    )


@pytest.mark.parametrize("wait_for", ["ready", "groups"])
def test_a_wait_for_groups_that_all_failed_says_it_once(wait_for: str) -> None:
    seen = snapshot(leases=(lease("run"),), spec=pool())
    failed = tuple(replace(group, status="failed", issues=(DENIED,)) for group in seen.groups)
    wait = NodesWait(key=key("run"), wait_for=wait_for, started=NOW, deadline=NOW + timedelta(minutes=20))  # type: ignore[arg-type]
    error = wait.step(replace(seen, groups=failed)).error
    assert isinstance(error, GroupFailed)
    assert error.what == f"Pool train: its node groups failed ({A}, {B}, {C}: {DENIED})."
