"""Where an Auto Scaling group's next instance is launched, and why EC2 refuses."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpu_sandbox.aws.capacity_reservations import target_of
from gpu_sandbox.aws.ec2 import Ec2Backend
from gpu_sandbox.aws.ec2_refusals import words_of
from gpu_sandbox.aws.interface import Market
from gpu_sandbox.aws.quotas import VcpuQuotas
from gpu_sandbox.faults import Faults

_MARKET_WORDS: dict[Market, str] = {"on-demand": "On-Demand", "spot": "Spot", "capacity-block": "Capacity Block"}


@dataclass(frozen=True, kw_only=True)
class CapacityPool:
    """What one launch asks EC2 for."""

    subnet_id: str
    zone: str
    instance_type: str
    market: Market
    reservation: str = ""
    """The Capacity Reservation that it targets."""


@dataclass(frozen=True, kw_only=True)
class LaunchPlan:
    """What a group may launch: its subnets, its types in order, and its split over the markets."""

    subnets: Sequence[tuple[str, str]]
    """(subnet id, zone)"""
    instance_types: Sequence[str]
    on_demand_base: int = 0
    on_demand_percentage: int = 100
    from_block: bool = False
    """Whether its launch template takes what a Capacity Block has reserved, whatever the split says."""
    reservation: str = ""
    """The Capacity Reservation that its launch template targets."""
    placement_group: str = ""
    """The one that its launch template names."""
    fleet: bool = True
    """Whether the group has a mixed instances policy, which shows in EC2's messages."""
    by_capacity: bool = False
    """Whether spot goes by capacity (`capacity-optimized` and its kin), which shows there too."""

    def market(self, desired: int, present: Iterable[Market]) -> Market:
        """The market of the next instance."""
        if self.from_block:
            return "capacity-block"
        above_base = max(desired - self.on_demand_base, 0)
        on_demand = min(desired, self.on_demand_base) + math.ceil(above_base * self.on_demand_percentage / 100)
        return "on-demand" if Counter(present)["on-demand"] < on_demand else "spot"

    def by_zone(self, market: Market, zones_in_use: Iterable[str]) -> list[list[CapacityPool]]:
        """The pools to try, one list for each subnet, the zone with the fewest instances first."""
        in_use = Counter(zones_in_use)
        ordered = sorted(self.subnets, key=lambda subnet: in_use[subnet[1]])
        return [
            [
                CapacityPool(
                    subnet_id=subnet_id,
                    zone=zone,
                    instance_type=instance_type,
                    market=market,
                    reservation=self.reservation,
                )
                for instance_type in self.instance_types
            ]
            for subnet_id, zone in ordered
        ]


def plan_of(
    *,
    subnets: Sequence[tuple[str, str]],
    mixed_instances_policy: dict[str, Any] | None,
    template_type: str,
    template: Mapping[str, Any],
) -> LaunchPlan:
    """The plan that a group's API fields, and its template's type, MarketType and reservation, describe."""
    from_block = (template.get("InstanceMarketOptions") or {}).get("MarketType") == "capacity-block"
    reservation = target_of(template)
    placement_group = str((template.get("Placement") or {}).get("GroupName") or "")
    if not mixed_instances_policy:
        return LaunchPlan(
            subnets=subnets,
            placement_group=placement_group,
            instance_types=(template_type,),
            from_block=from_block,
            reservation=reservation,
            fleet=False,
        )
    distribution = mixed_instances_policy.get("InstancesDistribution", {})
    overrides = mixed_instances_policy.get("LaunchTemplate", {}).get("Overrides", [])
    return LaunchPlan(
        subnets=subnets,
        placement_group=placement_group,
        instance_types=tuple(o["InstanceType"] for o in overrides if "InstanceType" in o) or (template_type,),
        from_block=from_block,
        reservation=reservation,
        on_demand_base=int(distribution.get("OnDemandBaseCapacity", 0)),
        on_demand_percentage=int(distribution.get("OnDemandPercentageAboveBaseCapacity", 100)),
        by_capacity="capacity" in distribution.get("SpotAllocationStrategy", "lowest-price"),
    )


@dataclass(kw_only=True)
class Ec2Capacity:
    """What EC2 has: stock, offerings and quotas, and the words in which it says no."""

    ec2: Ec2Backend
    quotas: VcpuQuotas
    faults: Faults
    random: random.Random = field(default_factory=lambda: random.Random(0))

    def choose(self, pools: Sequence[CapacityPool], plan: LaunchPlan) -> CapacityPool | str:
        """The pool that EC2 grants, of one subnet's; or why it grants none.

        On-demand follows the order of the types; spot goes by price and capacity, where the order means nothing.
        """
        refusals = [(pool, self._refusal(pool, plan)) for pool in pools]
        granted = [pool for pool, refusal in refusals if refusal is None]
        if granted:
            return self.random.choice(granted) if granted[0].market == "spot" else granted[0]
        pool, refusal = refusals[0]
        code, text = refusal or ("", "")
        prefix = f"Could not launch {_MARKET_WORDS[pool.market]} Instances. {code} - " if plan.fleet else ""
        return f"{prefix}{text} Launching EC2 instance failed."

    def _refusal(self, pool: CapacityPool, plan: LaunchPlan) -> tuple[str, str] | None:
        """The error code and the message, or None if EC2 would launch."""
        if not self.ec2.catalogue.offered(pool.instance_type, pool.zone):
            return self._not_offered(pool, plan)
        if pool.subnet_id and self.ec2.get_subnet(pool.subnet_id).available_ip_address_count < 1:
            return "InsufficientFreeAddressesInSubnet", (
                f"There are not enough free addresses in subnet '{pool.subnet_id}' to satisfy the requested number of "
                "instances."
            )
        if refusal := self._reserved(pool, plan) if pool.reservation else self._unreserved(pool, plan):
            return refusal
        error = self.faults.launch_error(zone=pool.zone, instance_type=pool.instance_type, market=pool.market)
        return (error, words_of(error, subnet=pool.subnet_id)) if error else None

    def _reserved(self, pool: CapacityPool, plan: LaunchPlan) -> tuple[str, str] | None:
        return self.ec2.capacity_reservations.refusal(
            pool.reservation,
            zone=pool.zone,
            instance_type=pool.instance_type,
            market=pool.market,
            placement_group=plan.placement_group,
        )

    def _unreserved(self, pool: CapacityPool, plan: LaunchPlan) -> tuple[str, str] | None:
        code = self.quotas.code_for(pool.instance_type, pool.market)
        if code is not None and self._over(code, pool):
            return self._over_quota(code, pool)
        if self.faults.out_of_stock(
            zone=pool.zone,
            instance_type=pool.instance_type,
            market=pool.market,
            placement_group=plan.placement_group,
        ):
            return self._out_of_stock(pool, plan)
        return None

    def _not_offered(self, pool: CapacityPool, plan: LaunchPlan) -> tuple[str, str]:
        text = (
            f"Your requested instance type ({pool.instance_type}) is not supported in your requested Availability "
            f"Zone ({pool.zone})."
        )
        if plan.fleet:
            return "InvalidFleetConfiguration", text
        elsewhere = self._elsewhere(pool)
        return "Unsupported", (
            f"{text} Please retry your request by not specifying an Availability Zone or choosing {elsewhere}."
        )

    def _out_of_stock(self, pool: CapacityPool, plan: LaunchPlan) -> tuple[str, str]:
        if pool.market != "spot":
            return "InsufficientInstanceCapacity", (
                f"We currently do not have sufficient {pool.instance_type} capacity in the Availability Zone you "
                f"requested ({pool.zone}). Our system will be working on provisioning additional capacity. You can "
                f"currently get {pool.instance_type} capacity by not specifying an Availability Zone in your "
                f"request or choosing {self._elsewhere(pool)}."
            )
        if plan.by_capacity:
            return "UnfulfillableCapacity", (
                "Unable to fulfill capacity due to your request configuration. Please adjust your request and try "
                "again."
            )
        return (
            "InsufficientInstanceCapacity",
            "There is no Spot capacity available that matches your request.",
        )

    def _over_quota(self, code: str, pool: CapacityPool) -> tuple[str, str]:
        if pool.market == "spot":
            return "MaxSpotInstanceCountExceeded", "Max spot instance count exceeded."
        return "VcpuLimitExceeded", (
            f"You have requested more vCPU capacity than your current vCPU limit of {self.quotas.value(code):g} "
            "allows for the instance bucket that the specified instance type belongs to. Please visit "
            "http://aws.amazon.com/contact-us/ec2-request to request an adjustment to this limit."
        )

    def _over(self, code: str, pool: CapacityPool) -> bool:
        in_use = self.ec2.vcpus_in_use(code, self.quotas.code_for)
        return in_use + self.ec2.catalogue.vcpus(pool.instance_type) > self.quotas.value(code)

    def _elsewhere(self, pool: CapacityPool) -> str:
        """The zones that EC2 would name instead."""
        zones = [zone.name for zone in self.ec2.describe_availability_zones() if zone.name != pool.zone]
        return ", ".join(
            zone
            for zone in zones
            if self.ec2.catalogue.offered(pool.instance_type, zone)
            and not self.faults.out_of_stock(zone=zone, instance_type=pool.instance_type, market=pool.market)
        )
