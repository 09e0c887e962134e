"""EC2: instances that take time to come and go, and the instance types of the sandbox; all else is moto's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, cast

from moto.core.responses import ActionResult
from moto.ec2.exceptions import InvalidLaunchTemplateVersionNotFound
from moto.ec2.models import EC2Backend, ec2_backends
from moto.ec2.models.instances import Instance as Ec2Instance
from moto.ec2.models.instances import Reservation, StateReason
from moto.ec2.models.launch_templates import LaunchTemplate, LaunchTemplateVersion

from gpu_sandbox.aws.capacity_reservations import CapacityReservations, DescribesReservations
from gpu_sandbox.aws.instance_types import InstanceTypeCatalogue
from gpu_sandbox.aws.interface import Market
from gpu_sandbox.aws.placement_groups import PlacementGroup, PlacementGroupError, PlacementGroups
from gpu_sandbox.aws.prices import SPOT_HISTORY, Prices
from gpu_sandbox.clock import Clock

if TYPE_CHECKING:
    from gpu_sandbox.aws.replicas import Replicas

StateName = Literal["pending", "running", "shutting-down", "terminated"]
_SPOT_PRICES_AT_ONCE = 1000
_CODES: dict[StateName, int] = {"pending": 0, "running": 16, "shutting-down": 32, "terminated": 48}


class Ec2Backend(EC2Backend):
    """moto's EC2 with the sandbox's catalogue of types."""

    def __init__(self, region_name: str, account_id: str, *, catalogue: InstanceTypeCatalogue, clock: Clock) -> None:
        self.catalogue = catalogue
        self.clock = clock
        self.capacity_reservations = CapacityReservations(lambda: self.all_instances(), clock)
        self.replicas: Replicas | None = None
        """Which read calls see, where they do not see everything."""
        self.placement_groups: dict[str, PlacementGroup] = {}
        super().__init__(region_name, account_id)

    def reset(self) -> None:
        """Backends live as long as their AwsCloud; moto's reset throws them away whole."""

    def _load_amis(self) -> None:
        """None of moto's 1300 AMIs: reading them takes longer than all else that AWS does to start."""

    def describe_instance_types(self, instance_types: list[str] | None = None, filters: Any = None) -> Any:
        zones = [zone.name for zone in self.describe_availability_zones()]
        return self.catalogue.describe_types(instance_types or [], filters, zones)

    def describe_instance_type_offerings(
        self, location_type: str | None = None, filters: dict[str, Any] | None = None
    ) -> list[Any]:
        zones = {zone.name: zone.zone_id for zone in self.describe_availability_zones()}
        return self.catalogue.describe_offerings(location_type or "region", filters or {}, zones)

    def describe_instances(self, filters: Any = None) -> list[Reservation]:
        """As moto's, with * and ? in a type, which EC2 takes in each filter's values and moto as they are."""
        if filters and (wanted := filters.get("instance-type")):
            types = {instance.instance_type for instance in self.all_instances()}
            meant = [each for each in types if any(fnmatchcase(each, pattern) for pattern in wanted)]
            filters = {**filters, "instance-type": meant}
        return super().describe_instances(filters)

    def create_launch_template(self, *args: Any, **kwargs: Any) -> LaunchTemplate:
        """As moto's, which dates it by this machine's clock."""
        template = super().create_launch_template(*args, **kwargs)
        template.create_time = self.clock.utc_now()
        return template

    def describe_launch_template_versions(
        self,
        template_name: str,
        template_id: str,
        versions: list[str],
        min_version: int,
        max_version: int,
        max_results: int,
    ) -> list[tuple[LaunchTemplate, LaunchTemplateVersion]]:
        """As moto's, which takes 0 for the newest version, and crashes at a word that is none of EC2's two."""
        for version in versions:
            check_version(version, template_id)
        return super().describe_launch_template_versions(
            template_name, template_id, versions, min_version, max_version, max_results
        )

    def launch(
        self,
        *,
        subnet_id: str,
        zone: str,
        instance_type: str,
        market: Market,
        reserved_by: str = "",
        image_id: str,
        security_groups: list[str],
        user_data: Any,
        launch_template: dict[str, Any] | None,
        tags: dict[str, str],
    ) -> Ec2Instance:
        """One instance, still pending. EC2ClientError if what the request names is not there."""
        if launch_template is not None:
            self.get_launch_template(launch_template["LaunchTemplateId"])  # moto looks it up as if it were there
        data = self._get_template_from_args(launch_template).data if launch_template else {}
        place = (data.get("Placement") or {}).get("GroupName")
        if place and place not in self.placement_groups:
            raise PlacementGroupError("Unknown", place)
        reservation = self.run_instances(
            image_id,
            1,
            user_data,
            security_groups,
            instance_type=instance_type,
            is_instance_type_default=False,
            placement=zone,
            subnet_id=subnet_id or None,
            associate_public_ip=None,
            launch_template=launch_template,
            region_name=self.region_name,
            lifecycle=None if market == "on-demand" else market,
            tags={"instance": tags},
        )
        instance = reservation.instances[0]
        set_state(instance, "pending")
        self._give_interfaces(instance, data.get("NetworkInterfaces") or [{"DeleteOnTermination": True}])
        if place:
            self.placement_groups[place].instances.add(instance.id)
        instance.capacity_reservation_id = reserved_by or None  # type: ignore[attr-defined]  # which DescribeInstances tells
        return instance

    def _give_interfaces(self, instance: Ec2Instance, wanted: Sequence[Mapping[str, Any]]) -> None:
        """Those of its launch template, of which moto makes one; numbered through, as moto knows no network cards.

        One that a launch makes unasked ends with its instance; one that is asked for does so where that says it
        (botocore, DeleteOnTermination; that it does not by default is an inference). An EFA-only one has no address.
        """
        first = instance.nics[0]
        first.delete_on_termination = bool(wanted[0].get("DeleteOnTermination"))
        for number, each in enumerate(wanted[1:], start=1):
            made = self.create_network_interface(
                first.subnet, "", delete_on_termination=bool(each.get("DeleteOnTermination"))
            )
            made.interface_type = str(each.get("InterfaceType") or "interface")
            if made.interface_type == "efa-only":
                made.private_ip_addresses, made.private_ip_address = [], None
            instance.attach_eni(made, number)

    def run_instances(self, *args: Any, **kwargs: Any) -> Reservation:
        reservation = super().run_instances(*args, **kwargs)
        for instance in reservation.instances:
            # moto's own stamp is by the machine's clock; it is UTC without saying so.
            instance.launch_time = self.clock.utc_now().replace(tzinfo=None)
        return reservation

    def vcpus_in_use(self, quota_code: str, code_for: Any) -> int:
        """vCPUs of the instances that count against a quota."""
        return sum(
            self.catalogue.vcpus(instance.instance_type)
            for instance in self.all_instances()
            if instance.state in ("pending", "running")
            and self.catalogue.known(instance.instance_type)
            and code_for(instance.instance_type, market_of(instance)) == quota_code
        )


def check_version(version: str, template_id: str | None) -> None:
    """Raise EC2's error for what names no version of any launch template."""
    is_number = version.isdecimal() and int(version) > 0
    if not is_number and version.lower() not in ("$latest", "$default"):
        raise InvalidLaunchTemplateVersionNotFound(version=version, template_id=template_id)


def market_of(instance: Ec2Instance) -> Market:
    """By its InstanceLifecycle, which an on-demand instance does not have."""
    return cast("Market", instance.lifecycle or "on-demand")


def set_state(instance: Ec2Instance, state: StateName) -> None:
    instance._state.name = state
    instance._state.code = _CODES[state]


def shut_down(instance: Ec2Instance, *, now: datetime, reason: str | None = None) -> None:
    """Begin to take the instance away. EC2 says at once why, and from when on it is not paid for."""
    set_state(instance, "shutting-down")
    _give_reason(instance, reason, now)


def end(instance: Ec2Instance, *, now: datetime, reason: str | None = None) -> None:
    """Take the instance away; it stays visible as terminated, as in EC2."""
    if instance.state == "terminated":
        return
    told = instance._reason if instance.state == "shutting-down" else ""
    for interface in instance.nics.values():
        if interface.delete_on_termination:
            # moto would give the address, by which the node is named, to the very next machine; EC2 does so much later.
            interface.private_ip_addresses = []
    instance.terminate()
    _give_reason(instance, reason, now)
    instance._reason = told or instance._reason


def _give_reason(instance: Ec2Instance, reason: str | None, now: datetime) -> None:
    """Set StateReason, and StateTransitionReason, which has the time where somebody ended the instance, else a code.

    As in "Find the reason for an unexpected instance termination" of EC2's user guide: "User initiated (2026-11-22
    03:04:05 GMT)" or "Server.SpotInstanceTermination".
    """
    message = reason or "Client.UserInitiatedShutdown: User initiated shutdown"
    code = message.split(":")[0]
    instance.state_reason = StateReason(message, code)
    instance._reason = code if reason else f"User initiated ({now:%Y-%m-%d %H:%M:%S} GMT)"


class Ec2Response(DescribesReservations, PlacementGroups):
    """EC2's API. Instances of an Auto Scaling group end in the group's own time, and are replaced there."""

    def __init__(self, prices: Prices) -> None:
        super().__init__()
        self._prices = prices

    @cached_property
    def ec2_backend(self) -> Ec2Backend:
        """As the call sees it."""
        backend = cast(Ec2Backend, ec2_backends[self.current_account][self.region])
        return backend.replicas.ec2_for(self._get_action(), self.access_key) if backend.replicas else backend

    def terminate_instances(self) -> ActionResult:
        from moto.autoscaling.models import autoscaling_backends

        self.error_on_dryrun()
        groups = autoscaling_backends[self.current_account][self.region]
        instance_ids: list[str] = self._get_param("InstanceIds", [])
        instances = self.ec2_backend.get_multi_instances_by_id(instance_ids)
        terminating = []
        for instance in instances:
            previous = {"Code": instance.state_code, "Name": instance.state}
            groups.instance_ended_outside(instance.id)  # type: ignore[attr-defined]
            if not hasattr(instance, "autoscaling_group"):
                end(instance, now=self.ec2_backend.clock.utc_now())
            terminating.append(
                {
                    "InstanceId": instance.id,
                    "CurrentState": {"Code": 32, "Name": "shutting-down"},
                    "PreviousState": previous,
                }
            )
        return ActionResult({"TerminatingInstances": terminating})

    def describe_spot_price_history(self) -> ActionResult:
        """The prices since StartTime, of the zones that offer the types; Linux's whichever product is named."""
        self.error_on_dryrun()
        now = self.ec2_backend.clock.utc_now()
        since = max(_moment(self._get_param("StartTime")) or now - SPOT_HISTORY, now - SPOT_HISTORY)
        until = min(_moment(self._get_param("EndTime")) or now, now)
        products = [name for name in self._get_param("ProductDescriptions", []) if name.startswith("Linux/UNIX")]
        offered = self.ec2_backend.describe_instance_type_offerings("availability-zone", self._wanted_prices())
        found = [
            {
                "InstanceType": price.instance_type,
                "ProductDescription": next(iter(products), "Linux/UNIX"),
                "SpotPrice": f"{price.usd:.6f}",
                "AvailabilityZone": price.zone,
                "Timestamp": price.since,
            }
            for each in sorted(offered, key=lambda offer: (offer["InstanceType"], offer["Location"]))
            for price in self._prices.spot_history(each["InstanceType"], each["Location"], since=since, until=until)
        ]
        start = int(self._get_param("NextToken") or 0)
        end = start + int(self._get_param("MaxResults") or _SPOT_PRICES_AT_ONCE)
        return ActionResult({"SpotPriceHistory": found[start:end], "NextToken": str(end) if end < len(found) else ""})

    def _wanted_prices(self) -> dict[str, list[str]]:
        """The filters, as those of offerings are named."""
        filters = self._filters_from_querystring()
        types: Any = self._get_param("InstanceTypes", []) or filters.get("instance-type", [])
        zone = self._get_param("AvailabilityZone")
        zones: Any = [zone] if zone else filters.get("availability-zone", [])
        wanted: dict[str, Any] = {"instance-type": types, "location": zones}
        return {name: list(values) for name, values in wanted.items() if values}


def _moment(given: Any) -> datetime | None:
    """A time of a request; without a zone it is UTC."""
    if not given:
        return None
    at = given if isinstance(given, datetime) else datetime.fromisoformat(str(given))
    return at if at.tzinfo else at.replace(tzinfo=UTC)
