"""What a plan on EKS says of instance types before their groups are made."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from botocore.session import get_session
from botocore.validate import ParamValidator
from moto.ec2.models.instance_types import INSTANCE_TYPES

from airflow_gpu_provider.clouds.aws.external_groups import candidate
from airflow_gpu_provider.clouds.aws.instance_types import type_notes
from airflow_gpu_provider.clouds.aws.launch_templates import check_fits
from airflow_gpu_provider.clouds.aws.machine_types import EFA_INTERFACES, instance_types
from airflow_gpu_provider.errors import PoolSpecError
from tests.unit.clouds.aws.test_eks_pool import pool

REPOSITORY = Path(__file__).parents[4]


@pytest.mark.parametrize("name", ["p5e.48xlarge", "p5en.48xlarge", "p6-b200.48xlarge", "p6-b300.48xlarge"])
def test_types_that_are_rarely_there_on_demand_are_had_by_capacity_blocks(name: str) -> None:
    (note,) = type_notes(pool(instance_types=[name], max_nodes=1))
    assert note.startswith(f"{name} are rarely available on demand: reserve a Capacity Block")


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


def test_capacity_blocks_are_named_as_reservations() -> None:
    with pytest.raises(PoolSpecError, match=r"a Capacity Block is one of the pool's reservations.*in reservations"):
        pool(instance_types=["p5.48xlarge"], capacity_types=["CAPACITY_BLOCK"])


def template_in(page: str) -> dict[str, Any]:
    """The data of the launch template that a document shows, as EC2 takes it."""
    text = (REPOSITORY / "docs" / page).read_text()
    (shown,) = re.findall(r"(?:--launch-template-data '|```json\n)(\s*\{.*?\})(?:'|\n\s*```)", text, re.DOTALL)
    data: dict[str, Any] = json.loads(shown)
    shape = get_session().get_service_model("ec2").shape_for("RequestLaunchTemplateData")
    assert not ParamValidator().validate(data, shape).has_errors()
    return data


def test_the_document_s_template_gives_a_pool_s_nodes_their_interfaces() -> None:
    data = template_in("multi-node.md")
    check_fits(data, pool(instance_types=["p4d.24xlarge"], zones=["us-west-2a"], launch_template="gpu-efa"))
    cards = {each["NetworkCardIndex"] for each in data["NetworkInterfaces"] if each["InterfaceType"].startswith("efa")}
    assert cards == set(range(EFA_INTERFACES["p4d.24xlarge"]))
    assert all(len(each["Groups"]) == 2 for each in data["NetworkInterfaces"]), "EKS adds no group to those"


def test_the_document_s_template_is_of_a_capacity_block() -> None:
    found = candidate("gpu-block", {}, None, template_in("groups-of-others.md"))
    assert (found.instance_type, found.market) == ("p5.48xlarge", "CAPACITY_BLOCK")
