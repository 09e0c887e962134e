"""What a plan on EKS says of instance types before their groups are made."""

from __future__ import annotations

from typing import Any

import pytest
from moto.ec2.models.instance_types import INSTANCE_TYPES

from airflow_gpu_provider.accelerators import instance_types
from airflow_gpu_provider.errors import PoolSpecError
from airflow_gpu_provider.platforms.aws.type_notes import EFA_INTERFACES, type_notes
from tests.unit.pools.test_eks import pool


@pytest.mark.parametrize("name", ["p5e.48xlarge", "p5en.48xlarge", "p6-b200.48xlarge", "p6-b300.48xlarge"])
def test_types_that_are_rarely_there_on_demand_are_had_by_capacity_blocks(name: str) -> None:
    (note,) = type_notes(pool(instance_types=[name], max_nodes=1))
    assert note.startswith(f"{name} can rarely be had on demand: reserve a Capacity Block")


@pytest.mark.parametrize(
    "fields",
    [
        {"instance_types": ["p5.48xlarge"]},
        {"instance_types": ["p5e.48xlarge"], "capacity_types": ["SPOT"]},
        {"instance_types": ["p5e.48xlarge"], "launch_template": "reserved"},
    ],
)
def test_others_are_not(fields: dict[str, Any]) -> None:
    assert not [note for note in type_notes(pool(**fields)) if "Capacity Block" in note]


def test_nodes_of_a_gang_have_no_efa_interfaces_without_a_template() -> None:
    types = ["p4d.24xlarge", "g6.xlarge", "g6.12xlarge"]
    (note,) = type_notes(pool(instance_types=types, max_nodes=2))
    assert "none of the EFA interfaces of p4d.24xlarge (4), g6.12xlarge (1)" in note
    assert not type_notes(pool(instance_types=types, max_nodes=1))
    assert not type_notes(pool(instance_types=types, max_nodes=2, launch_template="efa"))
    assert not type_notes(pool(instance_types=["g6.xlarge"], max_nodes=2))


@pytest.mark.parametrize("name", [each for each in instance_types() if each in INSTANCE_TYPES])
def test_interfaces_are_those_that_ec2_tells(name: str) -> None:
    told = INSTANCE_TYPES[name]["NetworkInfo"].get("EfaInfo", {}).get("MaximumEfaInterfaces")
    assert EFA_INTERFACES.get(name) == told


def test_capacity_blocks_are_for_groups_of_others() -> None:
    with pytest.raises(PoolSpecError, match=r"makes no groups for Capacity Blocks.*manage=\"scale\""):
        pool(instance_types=["p5.48xlarge"], capacity_types=["CAPACITY_BLOCK"])
