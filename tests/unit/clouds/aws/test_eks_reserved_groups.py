"""Node groups of reservations as data: which there are, in which order, how they are made, and what is read of them."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.session import get_session
from botocore.validate import ParamValidator
from hypothesis import given
from hypothesis import strategies as st

from airflow_gpu_provider import EksGpuPool
from airflow_gpu_provider.clouds.aws.instance_types import type_notes
from airflow_gpu_provider.clouds.aws.owned_candidates import OwnedCandidates, ReservedNow
from airflow_gpu_provider.clouds.aws.quota import quota_code
from airflow_gpu_provider.clouds.aws.reservations import Reservation, market_of, reservation_of, types_of
from airflow_gpu_provider.clouds.aws.spec import GroupSpec
from airflow_gpu_provider.clouds.aws.template_data import template_data, template_name
from airflow_gpu_provider.errors import PoolSpecError
from airflow_gpu_provider.pools import Candidate

NOW = datetime(2026, 11, 26, tzinfo=UTC)
A, B, C = "us-west-2a", "us-west-2b", "us-west-2c"
BLOCK, RESERVED = "cr-0000000000000b10c", "cr-0000000000000dcba"
P5, P4 = "p5.48xlarge", "p4d.24xlarge"


def pool(**fields: Any) -> EksGpuPool:
    usual: dict[str, Any] = {
        "name": "train",
        "cluster_name": "ml",
        "region": "us-west-2",
        "instance_types": [P5, P4],
        "capacity_types": ["RESERVED", "SPOT", "ON_DEMAND"],
        "reservations": [RESERVED, BLOCK],
        "max_nodes": 2,
    }
    return EksGpuPool(**(usual | fields))


def reservation(id_: str, kind: str = P5, zone: str = A, state: str = "active") -> Reservation:
    return Reservation(
        id=id_, is_block=id_ == BLOCK, instance_type=kind, zone=zone, state=state, total=2, free=2, start=NOW
    )


def places(spec: EksGpuPool, *found: Reservation) -> OwnedCandidates:
    """Of a pool with subnets in two zones, where EC2 offers all of its types."""
    made = OwnedCandidates(SimpleNamespace(pool=spec))  # type: ignore[arg-type]
    offers = SimpleNamespace(candidates=spec.candidates([A, B]), notes=())
    made.__dict__.update(subnets={A: None, B: None}, _known={each.id: each for each in found}, _offers=offers)
    return made


def spec_of(id_: str, spec: EksGpuPool | None = None) -> GroupSpec:
    spec = spec or pool()
    found = reservation(id_)
    candidate = spec.reserved_candidate(found.id, found.zone, found.instance_type, found.market)
    return GroupSpec(
        pool=spec, owner="prod/dag", candidate=candidate, subnet="subnet-1", node_role="arn:aws:iam::1:role/n"
    )


def described(spec: GroupSpec) -> dict[str, Any]:
    """What EKS says of a group that was made so: of a block's no type."""
    request = spec.create_request({"id": "lt-1", "version": "1"})
    template = {"id": "lt-1", "name": template_name(spec.pool, spec.candidate.group), "version": "1"}
    return {"status": "ACTIVE", "instanceTypes": None, **request, "launchTemplate": template}


# -- which there are -----------------------------------------------------------------------------------------


def test_those_of_reservations_come_where_the_spec_has_them_in_its_order() -> None:
    found = places(pool(), reservation(BLOCK, P4, B), reservation(RESERVED)).all()
    assert [(each.reservation, each.market, each.instance_type, each.zone) for each in found[:2]] == [
        (RESERVED, "RESERVED", P5, A),
        (BLOCK, "CAPACITY_BLOCK", P4, B),
    ]
    assert [each.market for each in found[2:]] == ["SPOT"] * 4 + ["ON_DEMAND"] * 4
    last = places(pool(capacity_types=["ON_DEMAND", "RESERVED"]), reservation(BLOCK)).all()
    assert last[-1].group == f"train-a-p5-48xlarge-{BLOCK}"


@pytest.mark.parametrize(
    ("kind", "zone", "why"),
    [
        ("g6.xlarge", A, "its type g6.xlarge is not one of the pool's"),
        (P5, C, f"the pool has no subnet in its zone {C}"),
    ],
)
def test_one_of_another_type_or_zone_is_left_out_and_the_plan_says_why(kind: str, zone: str, why: str) -> None:
    found = places(pool(), reservation(BLOCK, kind, zone), reservation(RESERVED))
    assert [each.reservation for each in found.all() if each.reservation] == [RESERVED]
    assert found.notes == (f"{BLOCK} is left out: {why}",)
    only = places(pool(capacity_types=["RESERVED"], reservations=[BLOCK]), reservation(BLOCK, kind, zone))
    only.__dict__["_offers"] = SimpleNamespace(candidates=(), notes=())
    with pytest.raises(PoolSpecError, match=why):
        only.all()


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"InstancePlatform": "Windows"}, "its platform is Windows, and nodes are Linux/UNIX"),
        ({"InstancePlatform": "Red Hat Enterprise Linux"}, "its platform is Red Hat Enterprise Linux, and nodes are"),
        ({"Tenancy": "dedicated"}, "its tenancy is dedicated, and nodes have the default one"),
        ({"Interruptible": True}, "it is interruptible, and node groups have no such market"),
        ({"InstancePlatform": "Linux/UNIX", "Tenancy": "default", "Interruptible": False}, ""),
    ],
)
def test_one_into_which_ec2_launches_no_node_is_left_out(fields: dict[str, Any], why: str) -> None:
    """Each launch would be refused, and tried again, before the next candidate."""
    usual = {"CapacityReservationId": RESERVED, "InstanceType": P5, "AvailabilityZone": A, "State": "active"}
    found = places(pool(), Reservation.parse({**usual, **fields}))
    assert [each.reservation for each in found.all() if each.reservation] == ([] if why else [RESERVED])
    assert found.notes == ((f"{RESERVED} is left out: {why}",) if why.endswith("one") else found.notes)
    assert all(why in note for note in found.notes)


def test_one_that_was_made_in_a_placement_group_is_launched_into_from_there() -> None:
    arn = "arn:aws:ec2:us-west-2:1:placement-group/trainings"
    usual = {"CapacityReservationId": RESERVED, "InstanceType": P5, "AvailabilityZone": A, "State": "active"}
    found = places(pool(), Reservation.parse({**usual, "PlacementGroupArn": arn}))
    (first, *others) = found.all()
    assert [found.placement_group(each) for each in (first, others[0])] == ["trainings", ""]
    data = template_data(pool(), first, made_in="trainings")
    assert data is not None
    assert data["Placement"] == {"GroupName": "trainings"}
    assert "Placement" not in (template_data(pool(), first) or {})


def test_of_one_that_is_over_no_group_is_made_and_one_that_exists_stays() -> None:
    found = places(pool(), reservation(BLOCK), reservation(RESERVED))
    over = reservation(BLOCK, state="expired")
    now = ReservedNow(ids=(RESERVED, BLOCK), found={BLOCK: over, RESERVED: reservation(RESERVED)}, at=NOW)
    first, second, *_ = found.all()
    assert second not in found.useful(now, ())
    assert second in found.useful(now, {second.group})
    assert now.open([first, second]) == [first]
    assert now.open([second]) == [second], "where nothing gives a machine, the plan names the first"
    assert [(each.name, bool(each.reserved and each.reserved.is_over)) for each in now.order([first, second], ())] == [
        (first.group, False),
        (second.group, True),
    ]


@given(
    st.lists(st.sampled_from(["RESERVED", "SPOT", "ON_DEMAND"]), min_size=1, unique=True),
    st.permutations([RESERVED, BLOCK]),
    st.randoms(),
)
def test_groups_that_exist_are_sorted_as_they_are_preferred(markets: list[str], ids: list[str], random: Any) -> None:
    fields = {"capacity_types": markets, **({"reservations": ids} if "RESERVED" in markets else {"reservations": []})}
    spec = pool(**fields, zones=[A, B])
    wanted = list(places(spec, reservation(BLOCK, P4, B), reservation(RESERVED)).all())
    there = [*wanted]
    random.shuffle(there)
    assert sorted(there, key=spec.preferences.rank) == wanted
    assert all(spec.preferences.include(each) for each in wanted)


def test_a_group_of_a_reservation_that_the_spec_no_longer_names_is_not_wanted() -> None:
    candidate = spec_of(BLOCK).candidate
    assert pool().preferences.include(candidate)
    assert not pool(reservations=[RESERVED]).preferences.include(candidate)
    assert not pool(reservations=[], capacity_types=["ON_DEMAND"]).preferences.include(candidate)
    on_demand = Candidate(group="x", zone=A, instance_type=P5, market="ON_DEMAND")
    assert not pool(capacity_types=["RESERVED"]).preferences.include(on_demand)


def test_no_quota_and_no_advice_to_reserve() -> None:
    assert quota_code(P5, spec_of(BLOCK).candidate.market) is None
    assert quota_code(P5, spec_of(RESERVED).candidate.market) is None
    rare = ["p5e.48xlarge"]
    assert (
        "reserve a Capacity Block"
        in type_notes(pool(instance_types=rare, reservations=[], capacity_types=["ON_DEMAND"]))[0]
    )
    assert not any("reserve a" in note for note in type_notes(pool(instance_types=rare)))


# -- how they are made ---------------------------------------------------------------------------------------


def test_a_blocks_template_has_target_market_and_type_and_its_group_none() -> None:
    """EKS user guide, "Create a managed node group with Capacity Blocks for ML"."""
    spec = spec_of(BLOCK)
    data = spec.template_data()
    assert data
    assert data["InstanceMarketOptions"] == {"MarketType": "capacity-block"}
    assert data["CapacityReservationSpecification"] == {"CapacityReservationTarget": {"CapacityReservationId": BLOCK}}
    assert data["InstanceType"] == P5
    request = spec.create_request({"id": "lt-1", "version": "1"})
    assert request["capacityType"] == "CAPACITY_BLOCK"
    assert "instanceTypes" not in request
    assert "diskSize" not in request
    assert request["scalingConfig"]["desiredSize"] == 0
    assert request["subnets"] == ["subnet-1"]


def test_that_of_an_on_demand_reservation_has_the_target_alone() -> None:
    spec = spec_of(RESERVED)
    data = spec.template_data()
    assert data
    assert data["CapacityReservationSpecification"] == {
        "CapacityReservationTarget": {"CapacityReservationId": RESERVED}
    }
    assert not {"InstanceMarketOptions", "InstanceType"} & data.keys()
    request = spec.create_request({"id": "lt-1", "version": "1"})
    assert (request["capacityType"], request["instanceTypes"]) == ("ON_DEMAND", [P5])


@pytest.mark.parametrize("id_", [BLOCK, RESERVED])
def test_what_was_just_created_does_not_differ_and_says_what_it_is(id_: str) -> None:
    spec = spec_of(id_)
    group = described(spec)
    assert spec.differences(group) == []
    assert spec.missing_tags(group) == {}
    assert (reservation_of(group), types_of(group), market_of(group)) == (id_, [P5], spec.candidate.market)
    shapes = get_session().get_service_model("eks").operation_model("CreateNodegroup").input_shape
    assert not ParamValidator().validate(spec.create_request({"id": "lt-1", "version": "1"}), shapes).has_errors()
    shape = get_session().get_service_model("ec2").shape_for("RequestLaunchTemplateData")
    assert not ParamValidator().validate(spec.template_data(), shape).has_errors()


def test_other_groups_of_the_pool_have_no_template_for_it() -> None:
    spec = pool()
    assert template_data(spec, spec.candidates([A])[0]) is None


def test_pools_without_reservations_are_as_they_were() -> None:
    plain = pool(reservations=[], capacity_types=["ON_DEMAND"])
    assert "reservations" not in plain._group_fields()
    group = {"tags": {}, "instanceTypes": [P5], "capacityType": "SPOT"}
    assert (reservation_of(group), types_of(group), market_of(group)) == ("", [P5], "SPOT")
