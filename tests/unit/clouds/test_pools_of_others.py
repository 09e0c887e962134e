"""A pool class from outside the package does what this package's own do; its kind is known by an entry point."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from airflow_gpu_provider import EksGpuPool, EnsureGpuPoolOperator, GpuPodOperator, placement
from airflow_gpu_provider.clouds import pool_kinds
from airflow_gpu_provider.clouds.base import platform_for
from airflow_gpu_provider.clouds.pool_kinds import deserialize_pool, pool_as_written
from airflow_gpu_provider.errors import PoolSpecError
from airflow_gpu_provider.training.wait.pull import remedies
from tests.fakes.aks import AksGpuPool, AksPlatform, install

AKS = AksGpuPool(name="train", max_nodes=2, cluster_name="c")
ENTRY = "aks = tests.fakes.aks:AksGpuPool"


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for packages, on the path of a process that has read no entry points yet."""
    monkeypatch.syspath_prepend(tmp_path)
    pool_kinds._installed.cache_clear()
    yield tmp_path
    pool_kinds._installed.cache_clear()


USES: dict[str, tuple[Callable[[], object], object]] = {
    "platform_for(pool)": (lambda: type(platform_for(AKS)), AksPlatform),
    "remains_path": (lambda: AKS.remains_path, ""),
    "how_to_widen": (lambda: AKS.how_to_widen, "Allow the pool more machines"),
    "placement(pool, gpus=1)": (lambda: placement(AKS, gpus=1).node_selector, AKS.node_selector),
    "Ensure": (lambda: EnsureGpuPoolOperator(task_id="e", gpu_pool=AKS).gpu_pool, AKS),
    "a pod": (lambda: GpuPodOperator(task_id="t", gpu_pool=AKS, image="x").gpu_pool, AKS),
    "a pod with cluster_name": (
        lambda: GpuPodOperator(task_id="u", gpu_pool=AKS, image="x", cluster_name="c").gpu_pool,
        AKS,
    ),
    "remedies(pool)": (lambda: remedies(AKS), ["gpu_nodes(prefetch=[...]) begins it when the node joins"]),
    "who brings its driver": (lambda: AKS.nodes_to_come.platform, ""),
}


@pytest.mark.parametrize("use", USES)
def test_a_pool_class_from_outside_can_be_used(use: str) -> None:
    call, expected = USES[use]
    assert call() == expected


def test_a_kind_from_outside_is_read_by_its_packages_entry_point(packages: Path) -> None:
    install(packages, "company-aks", ENTRY)
    assert deserialize_pool(AKS.serialize()) == AKS
    assert pool_as_written({"kind": "aks", "name": "train", "max_nodes": 2, "cluster_name": "c"}) == AKS
    with pytest.raises(PoolSpecError, match="Write vm_sizes for vm_size"):
        pool_as_written(AKS.serialize() | {"vm_size": "x"})


def test_entry_points_are_read_once(packages: Path) -> None:
    install(packages, "company-aks", ENTRY)
    deserialize_pool(AKS.serialize())
    shutil.rmtree(packages)
    assert deserialize_pool(AKS.serialize()) == AKS


@pytest.mark.parametrize(
    ("entries", "kind", "message"),
    [
        ([ENTRY, ENTRY], "aks", "Packages first and second all have pools of kind 'aks'. Remove first or second."),
        ([ENTRY, "eks = a:B"], "aks", "Packages airflow-gpu-provider and second all have pools of kind 'eks'. Remove"),
        ([ENTRY], "oke", "Unknown kind of pool: 'oke'. Give one of aks, eks, gke, kubernetes as its kind, or install"),
        (["aks = no.such:Class"], "aks", "first provides .* 'aks' as no.such:Class, which cannot be imported: No modu"),
        (["aks = tests.fakes.aks:Other"], "aks", "which cannot be imported: .* has no attribute 'Other'"),
        (["aks = tests.fakes.aks:AksPlatform"], "aks", "which is no subclass of GpuPool with kind='aks'"),
        (["oke = tests.fakes.aks:AksGpuPool"], "oke", "which is no subclass of GpuPool with kind='oke'"),
    ],
)
def test_a_kind_that_cannot_be_read_is_an_error_with_the_names(
    packages: Path, entries: list[str], kind: str, message: str
) -> None:
    for package, entry in zip(("first", "second"), entries, strict=False):
        install(packages, package, entry)
    with pytest.raises(PoolSpecError, match=message):
        deserialize_pool(AKS.serialize() | {"kind": kind})


def test_this_packages_own_kinds_are_read_whatever_others_register(packages: Path) -> None:
    install(packages, "company", "eks = no.such:Class")
    spec = EksGpuPool(name="a", cluster_name="c", region="us-west-2", instance_types=["g6.xlarge"], max_nodes=1)
    assert deserialize_pool(spec.serialize()) == spec
