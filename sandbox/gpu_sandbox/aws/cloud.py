"""AWS for one sandbox: moto's services, completed, behind one endpoint, with a clock that moves them on."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from moto.autoscaling.exceptions import AutoscalingClientError
from moto.autoscaling.models import autoscaling_backends
from moto.core.base_backend import BackendDict
from moto.core.responses import BaseResponse
from moto.ec2.models import ec2_backends
from moto.eks.models import eks_backends
from moto.moto_api._internal import mock_random

from gpu_sandbox.aws.access import AccessControl, PolicyUse
from gpu_sandbox.aws.activities import ActivityLog
from gpu_sandbox.aws.authorization import Authorization
from gpu_sandbox.aws.auto_scaling import AutoScaling
from gpu_sandbox.aws.auto_scaling_api import AutoScalingApi
from gpu_sandbox.aws.capacity_reservations import TAKEN_BY_BLOCK, CapacityReservation
from gpu_sandbox.aws.clusters import ControlPlaneAddress
from gpu_sandbox.aws.ec2 import Ec2Backend, Ec2Response, market_of
from gpu_sandbox.aws.eks import Eks
from gpu_sandbox.aws.eks_api import EksApi
from gpu_sandbox.aws.groups import AutoScalingGroup, Surroundings
from gpu_sandbox.aws.iam_api import IamApi
from gpu_sandbox.aws.identities import Identities, StsApi, identify
from gpu_sandbox.aws.instance_types import InstanceTypeCatalogue
from gpu_sandbox.aws.interface import (
    AccessKey,
    AwsTimings,
    ClusterNetwork,
    Identity,
    Instance,
    ScalableGroup,
)
from gpu_sandbox.aws.judged import JudgedApi
from gpu_sandbox.aws.launches import Ec2Capacity
from gpu_sandbox.aws.node_group_rules import NODE_GROUP_QUOTA
from gpu_sandbox.aws.node_groups import NodeGroup
from gpu_sandbox.aws.node_releases import SsmApi
from gpu_sandbox.aws.prices import Prices
from gpu_sandbox.aws.pricing_api import PricingResponse
from gpu_sandbox.aws.quotas import ServiceQuotasResponse, VcpuQuotas
from gpu_sandbox.aws.registration import kubernetes_taint
from gpu_sandbox.aws.replicas import Replicas
from gpu_sandbox.aws.server import AwsApi, AwsServer
from gpu_sandbox.aws.spot import SpotInterruptions
from gpu_sandbox.aws.vpc import create_vpc
from gpu_sandbox.clock import Clock, SystemClock
from gpu_sandbox.cloud_events import CloudEvents, Outbox, deliver
from gpu_sandbox.consistency import Staleness
from gpu_sandbox.faults import Faults


class AwsCloud:
    """One account in one region. moto's state is the process's, by account: two with the same may not run in it.

    `start` begins with an empty account, `stop` leaves it empty.
    """

    def __init__(
        self,
        *,
        region: str = "us-west-2",
        account_id: str = "123456789012",
        faults: Faults,
        timings: AwsTimings | None = None,
        events: CloudEvents[Instance],
        seed: int = 0,
        clock: Clock | None = None,
    ) -> None:
        self.region = region
        self.account_id = account_id
        self.timings = timings or AwsTimings()
        self.clock = clock or SystemClock()
        self._faults = faults
        faults.follow(self.clock)
        self._seed = seed
        self._outbox = Outbox(events)
        self._lock = threading.RLock()
        self._running = False

    # Life

    def start(self) -> None:
        """Ready when it returns. RuntimeError if an AwsCloud of this account runs in the process."""
        if self.account_id in _running:
            raise RuntimeError(f"an AwsCloud of account {self.account_id} runs in this process already")
        _running.add(self.account_id)
        _forget(self.account_id)
        self.catalogue = InstanceTypeCatalogue(self.region)
        self.prices = Prices(self.catalogue, self.clock)
        self.quotas = VcpuQuotas(region=self.region, account_id=self.account_id, faults=self._faults)
        self._identities = Identities(account_id=self.account_id, region=self.region)
        self._build_services()
        self.access_key = self._identities.add("sandbox-admin")
        self.observer = self._identities.add("sandbox-observer")
        """The credentials by which the sandbox itself looks: what they read is never old."""
        self._replicas.observer = self.observer.access_key_id
        authorization = Authorization(
            region=self.region,
            account_id=self.account_id,
            auto_scaling=self._auto_scaling,
            eks=self._eks,
            ec2=self._ec2,
            iam=self._identities.iam,
        )
        self._access = AccessControl(authorization, self._identities.iam)
        self._api = AwsApi(
            services=self._services(),
            region=self.region,
            lock=self._lock,
            faults=self._faults,
            identities=self._identities,
            access=self._access,
            after_call=lambda: self._loop.wake(),
            clock=self.clock,
        )
        self._server = AwsServer(JudgedApi(self._api), self.clock)
        self._loop = self.clock.loop(self._step, poll=self.timings.poll, name="aws-clock", mark=self._replicas.mark)
        self._running = True
        self._server.start()
        self._loop.start()

    def stop(self) -> None:
        """Ends the endpoint and the clock; does nothing if it does not run."""
        if not self._running:
            return
        self._running = False
        self._server.stop()
        self._loop.stop()
        _forget(self.account_id)
        _running.discard(self.account_id)

    def _build_services(self) -> None:
        """Put the completed backends where moto's own code looks for its backends."""
        account, region = self.account_id, self.region
        self._activities = ActivityLog()
        ec2 = Ec2Backend(region, account, catalogue=self.catalogue, clock=self.clock)
        ec2_backends[account][region] = ec2
        self._ec2 = ec2
        around = Surroundings(
            region=region,
            timings=self.timings,
            ec2=ec2,
            capacity=Ec2Capacity(ec2=ec2, quotas=self.quotas, faults=self._faults),
            activities=self._activities,
            outbox=self._outbox,
            faults=self._faults,
            clock=self.clock,
        )
        self._auto_scaling = AutoScaling(region, account, surroundings=around)
        autoscaling_backends[account][region] = self._auto_scaling
        self._eks = Eks(region, account, auto_scaling=self._auto_scaling, surroundings=around)
        eks_backends[account][region] = self._eks
        self._replicas = Replicas(
            auto_scaling=self._auto_scaling,
            eks=self._eks,
            ec2=ec2,
            staleness=Staleness(seed=self._seed, longest=self.timings.stale),
            clock=self.clock,
        )
        self._auto_scaling.replicas = self._eks.replicas = ec2.replicas = self._replicas
        self._spot = SpotInterruptions(
            auto_scaling=self._auto_scaling,
            outbox=self._outbox,
            notice=self.timings.spot_notice,
            clock=self.clock,
        )

    def _services(self) -> dict[str, Callable[[], BaseResponse]]:
        return {
            "eks": EksApi,
            "autoscaling": AutoScalingApi,
            "ec2": lambda: Ec2Response(self.prices),
            "iam": lambda: IamApi(self._identities),
            "pricing": lambda: PricingResponse(self.prices, self.region),
            "service-quotas": lambda: ServiceQuotasResponse(self.quotas),
            "ssm": lambda: SsmApi(self._eks.releases),
            "sts": lambda: StsApi(self._identities),
        }

    def _step(self) -> None:
        with self._lock:
            now = self.clock.utc_now()
            self._spot.advance(now)
            for instance_id in self._ec2.capacity_reservations.ending():
                self._auto_scaling.instance_ended_outside(instance_id, reason=TAKEN_BY_BLOCK)
            self._auto_scaling.advance(now)
            self._eks.advance()
            self._replicas.record(now)
            events = self._outbox.take()
        deliver(events)

    # What the sandbox asks

    @property
    def endpoint_url(self) -> str:
        return self._server.endpoint_url

    @property
    def calls(self) -> Counter[str]:
        """API calls so far by operation, `eks:DescribeNodegroup`."""
        with self._lock:
            return self._api.calls.copy()

    @property
    def called_at(self) -> dict[str, float]:
        """When each operation was last called, in seconds since the epoch."""
        with self._lock:
            return dict(self._api.called_at)

    def env(self, access_key: AccessKey | None = None) -> dict[str, str]:
        """What an AWS client needs in its environment, as the admin or as another user."""
        key = access_key or self.access_key
        return {
            "AWS_ENDPOINT_URL": self.endpoint_url,
            "AWS_ACCESS_KEY_ID": key.access_key_id,
            "AWS_SECRET_ACCESS_KEY": key.secret_access_key,
            "AWS_DEFAULT_REGION": self.region,
        }

    def create_cluster(
        self,
        name: str,
        *,
        endpoint: str,
        certificate_authority: str,
        version: str = "1.36",
        zones: Sequence[str] | None = None,
    ) -> ClusterNetwork:
        """An ACTIVE cluster in a VPC of its own, with subnets in each zone (default: the region's first three).

        Its own subnets, which DescribeCluster names, are the control plane's alone: no machine there reaches it.

        `certificate_authority` is base64 of the PEM, as EKS gives it. Clusters that the API makes later have the
        same endpoint: there is one control plane.
        """
        with self._lock:
            self._eks.cluster_life.address = ControlPlaneAddress(
                endpoint=endpoint, certificate_authority=certificate_authority
            )
            every_zone = [zone.name for zone in self._ec2.describe_availability_zones()]
            vpc = create_vpc(self._ec2, zones or every_zone[:3])
            node_role = self._identities.create_role(f"{name}-node", service="ec2.amazonaws.com")
            cluster_role = self._identities.create_role(f"{name}-cluster", service="eks.amazonaws.com")
            cluster = self._eks.create_cluster(
                name,
                cluster_role,
                {"subnetIds": list(vpc.control_plane.values()), "vpcId": vpc.id, "endpointPublicAccess": True},
                version=version,
            )
            self._eks.cluster_life.open(cluster)
            return ClusterNetwork(
                vpc_id=vpc.id,
                subnets=vpc.private,
                public_subnets=vpc.public,
                control_plane_subnets=vpc.control_plane,
                node_role_arn=node_role,
            )

    def describe_groups(self) -> list[dict[str, Any]]:
        """Every Auto Scaling group with its instances, as plain data for a live view."""
        with self._lock:
            return [self._describe_group(group) for group in self._auto_scaling.groups()]

    def _describe_group(self, group: AutoScalingGroup) -> dict[str, Any]:
        managed = {node_group.asg_name: node_group for node_group in self._eks.node_groups()}.get(group.name)
        return {
            "name": group.name,
            "nodegroup": managed.nodegroup_name if managed else None,
            "status": managed.status if managed else None,
            "issues": [issue["message"] for issue in managed.health["issues"]] if managed else [],
            "min": group.min_size,
            "max": group.max_size,
            "desired": group.size,
            "instances": [
                {
                    "instance_id": member.instance.id,
                    "type": member.instance.instance_type,
                    "zone": member.availability_zone,
                    "market": market_of(member.instance),
                    "state": member.lifecycle_state,
                }
                for member in group.members
            ],
        }

    # What a scaler in the cluster does

    def scalable_groups(self) -> list[ScalableGroup]:
        """Every Auto Scaling group whose instance type is known."""
        with self._lock:
            managed = {node_group.asg_name: node_group for node_group in self._eks.node_groups()}
            groups = [group for group in self._auto_scaling.groups() if not group.deleting]
            known = [group for group in groups if self.catalogue.known(group.first_instance_type)]
            return [self._scalable_group(group, managed.get(group.name)) for group in known]

    def _scalable_group(self, group: AutoScalingGroup, managed: NodeGroup | None) -> ScalableGroup:
        kind, failed = group.first_instance_type, self._activities.last_failed_launch(group.name)
        return ScalableGroup(
            name=group.name,
            tags={tag["Key"]: tag["Value"] for tag in group.tags},
            min_size=int(group.min_size or 0),
            max_size=int(group.max_size or 0),
            desired=group.size,
            instance_ids=tuple(member.instance.id for member in group.members),
            zones=tuple(sorted(group.availability_zones)),
            instance_type=kind,
            architecture="arm64" if "arm64" in self.catalogue.architectures(kind) else "amd64",
            vcpus=self.catalogue.vcpus(kind),
            memory_bytes=self.catalogue.memory_bytes(kind),
            gpus=self.catalogue.gpus(kind),
            node_labels=managed.described_labels() if managed else {},
            node_taints=tuple(kubernetes_taint(t) for t in managed.taints if t.get("value")) if managed else (),
            launch_failed_at=failed.start_time if failed else None,
        )

    def set_desired_capacity(self, group_name: str, desired: int) -> None:
        """As SetDesiredCapacity. ValueError if it is refused."""
        with self._lock, _refusals():
            self._auto_scaling.set_desired_capacity(group_name, desired)
        self._loop.wake()

    def terminate_in_group(self, instance_id: str) -> None:
        """As TerminateInstanceInAutoScalingGroup with a decrement of the size. ValueError if it is refused."""
        with self._lock, _refusals():
            found = self._auto_scaling.find_member(instance_id)
            if found is None or not found[1].terminating:
                self._auto_scaling.terminate_instance(instance_id, should_decrement=True)
        self._loop.wake()

    def identify(self, token: str) -> Identity | None:
        """Who made this `k8s-aws-v1.` token for one of the clusters; None if it is not valid now."""
        with self._lock:
            return identify(
                token,
                identities=self._identities,
                cluster_names=list(self._eks.clusters),
                hosts={
                    self.endpoint_url.removeprefix("http://"),
                    f"sts.{self.region}.amazonaws.com",
                    "sts.amazonaws.com",
                },
                # Its holder signed by the machine's clock, and makes another in good time by that.
                now=datetime.now(UTC),
                longest_life=self._faults.token_seconds,
            )

    def add_identity(self, name: str, *, policy: Mapping[str, Any] | None = None) -> AccessKey:
        """A new IAM user, who may do everything, or just what this policy allows.

        EntityAlreadyExists if the name is taken. UnsupportedPolicy if something in the policy is not evaluated here.
        """
        with self._lock:
            return self._identities.add(name, policy)

    def policy_uses(self, arn: str) -> frozenset[PolicyUse]:
        """What the policies of the user or role with this ARN have allowed so far, and for which calls."""
        with self._lock:
            return self._access.uses(arn)

    def refused(self, arn: str) -> frozenset[PolicyUse]:
        """What they have refused so far, and for which calls. The statement is empty."""
        with self._lock:
            return self._access.refused(arn)

    def node_joined(self, instance_id: str) -> None:
        """The instance's node is in the cluster. Does nothing for an instance that is gone."""
        with self._lock:
            found = self._auto_scaling.find_member(instance_id)
            if found is not None:
                _, member = found
                member.has_joined = True
        self._loop.wake()

    def complete_drain(self, instance_id: str) -> None:
        """The instance's pods are gone: end it. Does nothing if it waits for no drain."""
        with self._lock:
            found = self._auto_scaling.find_member(instance_id)
            if found is not None:
                group, member = found
                group.complete_terminating(member, self.clock.utc_now())
        self._loop.wake()

    def recommend_rebalance(self, instance_id: str) -> None:
        """Say that a spot instance is likely to be taken soon. ValueError if it is no running spot instance.

        A group with capacity rebalancing, as EKS makes its own, launches another and then ends this one.
        """
        with self._lock:
            self._spot.recommend_rebalance(instance_id, self.clock.utc_now())
        self._loop.wake()

    def interrupt_spot(self, instance_id: str) -> None:
        """Give a spot instance its notice now. ValueError if it is no running spot instance."""
        with self._lock:
            self._spot.interrupt(instance_id, self.clock.utc_now())
        self._loop.wake()

    def set_quota(self, quota_code: str, limit: float) -> None:
        """Set one of EC2's quotas, in vCPUs, or EKS's of node groups in a cluster. ValueError if it is none of them."""
        with self._lock:
            if quota_code == NODE_GROUP_QUOTA:
                self._eks.max_node_groups = int(limit)
            else:
                self.quotas.set(quota_code, limit)

    def reserve(
        self,
        kind: Literal["default", "capacity-block"],
        instance_type: str,
        zone: str,
        *,
        count: int = 1,
        starts_in: timedelta = timedelta(0),
        lasts: timedelta | None = None,
        state: str = "",
        **fields: object,
    ) -> str:
        """Have a Capacity Reservation there, on demand ("default") or a Capacity Block; return its id.

        It goes from scheduled to active to expired by the clock, unless `state` says another. `fields` are more of
        botocore's CapacityReservation: PlacementGroupArn, say.
        """
        with self._lock:
            now = self.clock.utc_now()
            reservation = CapacityReservation(
                id=f"cr-{mock_random.get_random_hex(17)}",
                kind=kind,
                instance_type=instance_type,
                zone=zone,
                total=count,
                created=now,
                start=now + starts_in,
                end=None if lasts is None else now + starts_in + lasts,
                held=state,
                also=fields,
            )
            self._ec2.capacity_reservations.put(reservation)
            return reservation.id

    def hold_reservation(self, id_: str, state: str) -> None:
        """Put a Capacity Reservation into a state, like "cancelled". KeyError if there is none."""
        with self._lock:
            self._ec2.capacity_reservations.hold(id_, state)

    def publish_node_images(self, day: str, *, broken: bool = False) -> None:
        """Release new node images of all kinds, on a day like "20260827"; of broken ones no GPU is ever allocatable."""
        with self._lock:
            self._eks.releases.publish(day, broken=broken)

    def has_broken_image(self, instance: Instance) -> bool:
        """Whether its node group is at a release of images that is broken."""
        with self._lock:
            groups = (each.nodegroups.get(instance.nodegroup or "") for each in self._eks.clusters.values())
            return any(
                self._eks.releases.is_broken(group.ami_type, str(group.version), group.release_version)
                for group in groups
                if group is not None
            )

    def set_offered(self, instance_type: str, zone: str, *, offered: bool) -> None:
        """Say whether a zone has a type at all. ValueError if the type is unknown."""
        with self._lock:
            self.catalogue.set_offered(instance_type, zone, offered)


_running: set[str] = set()


@contextmanager
def _refusals() -> Iterator[None]:
    """Say what the Auto Scaling API refuses as a ValueError."""
    try:
        yield
    except AutoscalingClientError as error:
        raise ValueError(str(error.message)) from error


def _forget(account_id: str) -> None:
    """Empty one account in all of moto's services."""
    for backends in list(BackendDict._instances):  # type: ignore[misc]  # moto keeps it there
        backends.pop(account_id, None)
