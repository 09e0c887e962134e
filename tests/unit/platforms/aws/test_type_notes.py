"""What a plan on EKS says of instance types before their groups are made."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_gpu_provider.errors import PoolSpecError
from airflow_gpu_provider.platforms.aws.type_notes import type_notes
from tests.unit.pools.test_eks import pool


@pytest.mark.parametrize("name", ["p5e.48xlarge", "p5en.48xlarge", "p6-b200.48xlarge", "p6-b300.48xlarge"])
def test_types_that_are_rarely_there_on_demand_are_had_by_capacity_blocks(name: str) -> None:
    (note,) = type_notes(pool(instance_types=[name]))
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


def test_capacity_blocks_are_for_groups_of_others() -> None:
    with pytest.raises(PoolSpecError, match=r"makes no groups for Capacity Blocks.*manage=\"scale\""):
        pool(instance_types=["p5.48xlarge"], capacity_types=["CAPACITY_BLOCK"])
