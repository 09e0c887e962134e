"""Compute Engine's machine types in the catalogue agree with its GPUs."""

from __future__ import annotations

import pytest

from airflow_gpu_provider.accelerators import (
    attachable_gpus,
    gce_accelerators,
    gce_machine_type,
    gce_machine_types,
    gce_obtained_by,
    gpu_of_accelerator,
)


def test_every_machine_type_is_found_and_has_gpus_or_takes_some_or_none() -> None:
    for name in gce_machine_types():
        machine = gce_machine_type(name)
        assert machine is not None
        assert machine.name == name
        assert bool(machine.gpu) == bool(machine.gpus)
        assert not (machine.gpu and machine.takes_attached_gpus)
    assert {gpu_of_accelerator(name) is not None for name in gce_accelerators()} == {True}


def test_what_is_not_there_on_demand_is_in_the_catalogue() -> None:
    obtained = {name: gce_obtained_by(name) for name in gce_machine_types() if gce_obtained_by(name)}
    assert obtained["a4-highgpu-8g"] == obtained["a3-megagpu-8g"] == ("reservation", "spot", "flex-start")
    assert obtained["a3-highgpu-1g"] == ("spot", "flex-start")
    assert not gce_obtained_by("g2-standard-4")


@pytest.mark.parametrize(
    ("machine_type", "accelerator", "counts"),
    [
        ("n1-standard-4", "nvidia-tesla-k80", (1, 2, 4, 8)),
        ("n1-standard-16", "nvidia-tesla-k80", (2, 4, 8)),
        ("n1-standard-96", "nvidia-tesla-t4", (4,)),
        ("n1-standard-4", "nvidia-l4", ()),
        ("g2-standard-4", "nvidia-l4", ()),
        ("n1-standard-5", "nvidia-tesla-t4", ()),
    ],
)
def test_what_can_be_attached(machine_type: str, accelerator: str, counts: tuple[int, ...]) -> None:
    assert attachable_gpus(machine_type, accelerator) == counts
