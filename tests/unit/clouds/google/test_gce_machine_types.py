"""Compute Engine's machine types in the catalogue agree with the sandbox's rows, which are from Google's documents."""

from __future__ import annotations

import pytest

from airflow_gpu_provider.clouds.google.machine_types import (
    attachable_gpus,
    gce_accelerators,
    gce_machine_type,
    gce_machine_types,
    gce_obtained_by,
    gke_partitions_of,
    gpu_of_accelerator,
)
from gpu_sandbox.google import machine_types as published


def test_both_have_the_same_types() -> None:
    assert set(gce_machine_types()) == published.MACHINE_TYPES.keys()
    assert set(gce_accelerators()) == published.ACCELERATORS.keys()


@pytest.mark.parametrize("name", gce_machine_types())
def test_a_machine_type_is_what_google_publishes(name: str) -> None:
    ours, theirs = gce_machine_type(name), published.MACHINE_TYPES[name]
    assert ours is not None
    gpu = ours.gpu and ours.gpu.accelerator
    found = (ours.name, ours.vcpus, ours.memory_gib, gpu, ours.gpus)
    assert found == (name, theirs.vcpus, theirs.memory_gib, theirs.accelerator and theirs.accelerator.name, theirs.gpus)
    assert not (ours.gpu and ours.takes_attached_gpus)


@pytest.mark.parametrize("name", gce_accelerators())
def test_an_accelerator_is_what_google_publishes(name: str) -> None:
    ours, theirs = gpu_of_accelerator(name), published.ACCELERATORS[name]
    assert ours is not None
    assert (ours.product, ours.memory_gib) == (theirs.product, theirs.memory_gib)
    assert gke_partitions_of(ours) == theirs.partitions


@pytest.mark.parametrize("name", gce_accelerators())
def test_what_can_be_attached(name: str) -> None:
    for machine_type in (*gce_machine_types(), "n1-standard-5"):
        assert attachable_gpus(machine_type, name) == published.attachable_gpus(machine_type, name)


def test_what_is_not_there_on_demand_is_in_the_catalogue() -> None:
    obtained = {name: gce_obtained_by(name) for name in gce_machine_types() if gce_obtained_by(name)}
    assert obtained.keys() == published.NEVER_ON_DEMAND
    assert obtained["a4-highgpu-8g"] == obtained["a3-megagpu-8g"] == ("reservation", "spot", "flex-start")
    assert obtained["a3-highgpu-1g"] == ("spot", "flex-start")
