"""GKE's node pools: their life cycle, one instance group for each zone, and the operations that change them."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from google.cloud.container_v1.types import (
    MaxPodsConstraint,
    NodePool,
    NodePoolAutoscaling,
    NodePoolUpdateStrategy,
    StatusCondition,
)

from gpu_sandbox.google.catalogue import Catalogue
from gpu_sandbox.google.errors import GoogleApiError, not_found
from gpu_sandbox.google.instance_groups import InstanceGroup, Surroundings
from gpu_sandbox.google.interface import ScalableGroup
from gpu_sandbox.google.members import LaunchError
from gpu_sandbox.google.node_pool_rules import (
    check,
    check_autoscaling,
    check_locations,
    check_management,
    check_size,
    complete,
    taint_gpus,
    taint_queued,
)
from gpu_sandbox.google.operations import Operation, OperationError, Operations, Progress
from gpu_sandbox.google.resize_requests import STOCKOUT
from gpu_sandbox.google.templates import template_of
from gpu_sandbox.google.upgrades import BlueGreenUpgrade, SurgeUpgrade

_Status = NodePool.Status
_LONGEST_PART = 20


@dataclass(kw_only=True)
class Pool:
    """A node pool: its settings as the API shows them, and its groups by zone."""

    settings: NodePool
    groups: dict[str, InstanceGroup] = field(default_factory=dict)
    green: dict[str, InstanceGroup] = field(default_factory=dict)
    """Those of a blue-green upgrade that is under way, by zone; `groups` are the blue ones then."""
    blue_green: BlueGreenUpgrade | None = None

    @property
    def name(self) -> str:
        return str(self.settings.name)

    def shown(self) -> NodePool:
        """As the API shows it."""
        shown: NodePool = NodePool.deserialize(NodePool.serialize(self.settings))
        shown.instance_group_urls = [group.url for group in self.all_groups()]
        if self.blue_green is not None:
            shown.update_info.blue_green_info = NodePool.UpdateInfo.BlueGreenInfo(
                phase=self.blue_green.phase,
                blue_instance_group_urls=[group.url for group in self.groups.values()],
                green_instance_group_urls=[group.url for group in self.green.values()],
            )
        return shown

    def all_groups(self) -> list[InstanceGroup]:
        """The blue ones, then the green ones."""
        return [*self.groups.values(), *self.green.values()]


class NodePools:
    """The node pools of one cluster. Used under the cloud's lock."""

    def __init__(
        self,
        *,
        cluster: str,
        cluster_path: str,
        locations: Sequence[str],
        version: str,
        release_channel: str,
        catalogue: Catalogue,
        operations: Operations,
        around: Surroundings,
    ) -> None:
        self._cluster = cluster
        self._cluster_path = cluster_path
        self._locations = tuple(locations)
        self._version = version
        self._release_channel = release_channel
        self._catalogue = catalogue
        self._operations = operations
        self._around = around
        self.pools: dict[str, Pool] = {}

    # Looking

    def get(self, name: str) -> Pool:
        """NOT_FOUND if there is none."""
        pool = self.pools.get(name)
        if pool is None:
            raise not_found(f"Not found: {self._path(name)}.")
        return pool

    def groups(self) -> list[InstanceGroup]:
        return [group for pool in self.pools.values() for group in pool.all_groups()]

    @property
    def autoscaled(self) -> bool:
        """Whether one of them has autoscaling on."""
        return any(pool.settings.autoscaling.enabled for pool in self.pools.values())

    def scalable_groups(self) -> list[ScalableGroup]:
        """Those of pools with autoscaling on. A least size of the whole pool is each group's, less what others have."""
        return [
            _scalable(pool, group)
            for pool in self.pools.values()
            if pool.settings.autoscaling.enabled
            for zone, group in pool.groups.items()
            if zone in pool.settings.locations
        ]

    def advance(self, now: float) -> None:
        for pool in self.pools.values():
            for zone, group in list(pool.groups.items()):
                group.advance(now)
                if zone not in pool.settings.locations and not group.members:
                    del pool.groups[zone]
            for group in pool.green.values():
                group.advance(now)
        self._recover()

    def _recover(self) -> None:
        """A pool that lacked instances is RUNNING again once it has them, or is no longer to have them."""
        for pool in self.pools.values():
            failing = pool.settings.status in (_Status.ERROR, _Status.RUNNING_WITH_ERROR)
            if failing and all(group.stable for group in pool.groups.values()):
                _set_status(pool, _Status.RUNNING, None)

    # Operations

    def add(self, settings: NodePool, now: float) -> Pool:
        """A pool that is there at once, of size 0."""
        pool = self._new(settings)
        for zone in settings.locations:
            self._add_group(pool, zone, 0, now)
        _set_status(pool, _Status.RUNNING, None)
        self.pools[pool.name] = pool
        return pool

    def _new(self, settings: NodePool) -> Pool:
        check_management(settings, self._release_channel)
        complete(settings, locations=self._locations)
        if any(not each.settings.config.accelerators for each in self.pools.values()):
            taint_gpus(settings)
        taint_queued(settings)
        check(settings, self._catalogue)
        if settings.name in self.pools:
            raise GoogleApiError("ALREADY_EXISTS", f"Already exists: {self._path(settings.name)}.")
        settings.version = settings.version or self._version
        settings.self_link = f"https://container.googleapis.com/v1/{self._path(settings.name)}"
        settings.max_pods_constraint = MaxPodsConstraint(max_pods_per_node=110)
        settings.pod_ipv4_cidr_size = 24
        pool = Pool(settings=settings)
        _touch(pool)
        return pool

    def create(self, settings: NodePool, now: float) -> Operation:
        pool = self._new(settings)

        def begin(now: float) -> None:
            for zone in settings.locations:
                self._add_group(pool, zone, settings.initial_node_count, now)

        timings = self._around.timings
        operation = self._start(
            "CREATE_NODE_POOL",
            pool.name,
            now,
            begin=begin,
            look=self._until_stable(pool, now + timings.node_pool_create),
            end=lambda error: _set_status(pool, _Status.ERROR if error else _Status.RUNNING, error),
        )
        _set_status(pool, _Status.PROVISIONING, None)
        self.pools[pool.name] = pool
        return operation

    def set_size(self, name: str, size: int, now: float) -> Operation:
        """`size` is for each zone, as in GKE."""
        pool = self.get(name)
        check_size(size, pool.settings.autoscaling)

        def begin(now: float) -> None:
            pool.settings.initial_node_count = size
            for group in pool.groups.values():
                group.resize(size, now, drain=True)

        return self._reconcile("SET_NODE_POOL_SIZE", pool, now, self._around.timings.node_pool_resize, begin)

    def set_autoscaling(self, name: str, autoscaling: NodePoolAutoscaling, now: float) -> Operation:
        pool = self.get(name)
        check_autoscaling(autoscaling)

        def begin(now: float) -> None:
            pool.settings.autoscaling = autoscaling

        return self._change("UPDATE_CLUSTER", pool, now, begin)

    def update(self, name: str, changes: Callable[[NodePool], None], now: float) -> Operation:
        """`changes` are made to a copy, checked, and take hold when the operation runs.

        Instances that are there get new labels and taints, and otherwise keep what they were made with, where GKE would
        make them anew one by one.
        """
        pool = self.get(name)
        changed: NodePool = NodePool.deserialize(NodePool.serialize(pool.settings))
        changes(changed)
        complete(changed, locations=self._locations)
        check_locations(changed.locations, self._catalogue)
        check(changed, self._catalogue)

        def begin(now: float) -> None:
            changed.status = pool.settings.status
            pool.settings = changed
            template = template_of(changed, cluster_name=self._cluster)
            for group in pool.groups.values():
                group.set_template(template)
            self._follow_locations(pool, now)

        return self._reconcile("UPGRADE_NODES", pool, now, self._around.timings.node_pool_update, begin)

    def set_management(self, name: str, changes: Callable[[NodePool], None], now: float) -> Operation:
        pool = self.get(name)
        changed: NodePool = NodePool.deserialize(NodePool.serialize(pool.settings))
        changes(changed)
        check_management(changed, self._release_channel)
        return self._change("SET_NODE_POOL_MANAGEMENT", pool, now, lambda now: changes(pool.settings))

    def upgrade(self, name: str, now: float) -> Operation | None:
        """GKE's own doing: the nodes' upgrade, in the pool's way. None where it leaves the pool alone.

        It does where auto-upgrade is off, and where the pool is excluded until the end of support.
        """
        pool = self.get(name)
        excluded = pool.settings.maintenance_policy.exclusion_until_end_of_support.enabled
        if excluded or not pool.settings.management.auto_upgrade:
            return None
        blue_green = pool.settings.upgrade_settings.strategy == NodePoolUpdateStrategy.BLUE_GREEN
        return self._upgrade_blue_green(pool, now) if blue_green else self._upgrade_by_surge(pool, now)

    def _upgrade_by_surge(self, pool: Pool, now: float) -> Operation:
        surge = SurgeUpgrade(list(pool.groups.values()))
        return self._begin_upgrade(pool, now, surge, lambda: None)

    def _upgrade_blue_green(self, pool: Pool, now: float) -> Operation:
        for zone in pool.groups:
            self._add_group(pool, zone, 0, now, into=pool.green)
        blue_green = BlueGreenUpgrade(blue=list(pool.groups.values()), green=list(pool.green.values()))
        pool.blue_green = blue_green

        def end() -> None:
            pool.groups, pool.green, pool.blue_green = pool.green, {}, None

        return self._begin_upgrade(pool, now, blue_green, end)

    def _begin_upgrade(
        self, pool: Pool, now: float, upgrade: SurgeUpgrade | BlueGreenUpgrade, end: Callable[[], None]
    ) -> Operation:
        def finish(error: OperationError | None) -> None:
            end()
            _set_status(pool, _Status.RUNNING, error)

        operation = self._start("UPGRADE_NODES", pool.name, now, begin=upgrade.begin, look=upgrade.look, end=finish)
        _set_status(pool, _Status.RECONCILING, None)
        return operation

    def delete(self, name: str, now: float) -> Operation:
        pool = self.get(name)

        def begin(now: float) -> None:
            for group in pool.groups.values():
                group.resize(0, now, drain=True)

        def look(now: float) -> Progress:
            left = sum(len(group.members) for group in pool.groups.values())
            return Progress(over=self._around.clock.reached(done_at) and not left)

        def end(error: OperationError | None) -> None:
            del self.pools[name]

        done_at = now + self._around.timings.node_pool_delete
        operation = self._start("DELETE_NODE_POOL", name, now, begin=begin, look=look, end=end)
        _set_status(pool, _Status.STOPPING, None)
        return operation

    # What operations have in common

    def _start(
        self,
        kind: str,
        name: str,
        now: float,
        *,
        begin: Callable[[float], None],
        look: Callable[[float], Progress],
        end: Callable[[OperationError | None], None],
    ) -> Operation:
        return self._operations.start(kind, self._path(name), now, begin=begin, look=look, end=end)

    def _reconcile(
        self, kind: str, pool: Pool, now: float, seconds: float, begin: Callable[[float], None]
    ) -> Operation:
        """An operation that is over when the pool has the instances that it should have, or cannot get them."""

        def begin_and_say(now: float) -> None:
            _set_status(pool, _Status.RECONCILING, None)
            begin(now)
            _touch(pool)

        return self._start(
            kind,
            pool.name,
            now,
            begin=begin_and_say,
            look=self._until_stable(pool, now + seconds),
            end=lambda error: _set_status(pool, _Status.RUNNING_WITH_ERROR if error else _Status.RUNNING, error),
        )

    def _change(self, kind: str, pool: Pool, now: float, begin: Callable[[float], None]) -> Operation:
        """An operation that changes settings and touches no instance."""

        def begin_and_mark(now: float) -> None:
            begin(now)
            _touch(pool)

        done_at = now + self._around.timings.node_pool_update
        return self._start(
            kind,
            pool.name,
            now,
            begin=begin_and_mark,
            look=lambda now: Progress(over=self._around.clock.reached(done_at)),
            end=lambda error: None,
        )

    def _until_stable(self, pool: Pool, earliest: float) -> Callable[[float], Progress]:
        def look(now: float) -> Progress:
            groups = pool.groups.values()
            done = sum(group.running for group in groups)
            total = sum(group.target_size for group in groups)
            if all(group.stable for group in groups):
                return Progress(over=self._around.clock.reached(earliest), done=done, total=total)
            for group in groups:
                failure = group.longest_failing()
                if failure and self._around.clock.reached(failure[0] + self._around.timings.patience):
                    error = _not_all_running(group, failure[1], now - failure[0])
                    return Progress(over=True, error=error, done=done, total=total)
            return Progress(done=done, total=total)

        return look

    # Groups

    def _add_group(
        self, pool: Pool, zone: str, size: int, now: float, *, into: dict[str, InstanceGroup] | None = None
    ) -> None:
        groups = pool.groups if into is None else into
        before = pool.groups[zone].name if into is not None else ""
        digest = hashlib.sha256(f"{self._cluster}/{pool.name}/{zone}{before}".encode()).hexdigest()[:8]
        name = "-".join(("gke", _part(self._cluster), _part(pool.name), digest, "grp"))
        template = template_of(pool.settings, cluster_name=self._cluster)
        group = InstanceGroup(name=name, zone=zone, template=template, around=self._around, now=now)
        group.resize(size, now)
        groups[zone] = group

    def _follow_locations(self, pool: Pool, now: float) -> None:
        for zone in pool.settings.locations:
            if zone not in pool.groups:
                self._add_group(pool, zone, pool.settings.initial_node_count, now)
        for zone in set(pool.groups) - set(pool.settings.locations):
            pool.groups[zone].resize(0, now, drain=True)

    def _path(self, pool: str) -> str:
        return f"{self._cluster_path}/nodePools/{pool}"


def _scalable(pool: Pool, group: InstanceGroup) -> ScalableGroup:
    limits = pool.settings.autoscaling
    if not limits.total_max_node_count:
        return group.scalable(min_size=limits.min_node_count, max_size=limits.max_node_count, pool_max_size=0)
    others = sum(other.target_size for other in pool.groups.values() if other is not group)
    return group.scalable(
        min_size=max(limits.total_min_node_count - others, 0),
        max_size=limits.total_max_node_count,
        pool_max_size=limits.total_max_node_count,
    )


def _part(name: str) -> str:
    """GKE shortens long names in those of its groups and instances."""
    return name[:_LONGEST_PART].rstrip("-")


def _touch(pool: Pool) -> None:
    pool.settings.etag = secrets.token_hex(8)


def _set_status(pool: Pool, status: int, error: OperationError | None) -> None:
    pool.settings.status = _Status(status)
    pool.settings.status_message = error.message if error else ""
    pool.settings.conditions = []
    if error and error.condition:
        pool.settings.conditions = [
            StatusCondition(
                code=getattr(StatusCondition.Code, error.condition),
                canonical_code="RESOURCE_EXHAUSTED",
                message=error.message,
            )
        ]


def _not_all_running(group: InstanceGroup, error: LaunchError, seconds: float) -> OperationError:
    """In GKE's own words."""
    condition = "GCE_STOCKOUT" if error.code == STOCKOUT else "GCE_QUOTA_EXCEEDED"
    missing = group.target_size - group.running
    return OperationError(
        condition=condition,
        message=(
            f"Google Compute Engine: Not all instances running in IGM after {seconds:.9f}s. "
            f"Expected {group.target_size}, running {group.running}, transitioning {missing}. "
            f"Current errors: [{condition}]: Instance '{error.instance}' creation failed: {error.message}"
        ),
    )
