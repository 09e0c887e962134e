"""OwnedGkePlatform: the node pools that this package creates for a pool on GKE, one for each candidate."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import cached_property, partial
from typing import Any

from airflow_gpu_provider.clouds.answers import has_code, message_of
from airflow_gpu_provider.clouds.backoff import growth_notes
from airflow_gpu_provider.clouds.base import Group, Plan, Report
from airflow_gpu_provider.clouds.google import machine_types
from airflow_gpu_provider.clouds.google import spec as gke_spec
from airflow_gpu_provider.clouds.google.clients import Rest
from airflow_gpu_provider.clouds.google.cluster import GkeGroup
from airflow_gpu_provider.clouds.google.node_pools import Step, group_paths, is_owned, knows_exclusions
from airflow_gpu_provider.clouds.google.platform import GkePlatform
from airflow_gpu_provider.clouds.google.pool import PREEMPTIBLE, GkeGpuPool
from airflow_gpu_provider.clouds.google.spec import ZONE_LABEL, NodePoolSpec, labels_of, market_of
from airflow_gpu_provider.clouds.group_checks import Offers, by_reason, compare_offers, ordered
from airflow_gpu_provider.cluster.api.threads import in_parallel
from airflow_gpu_provider.errors import CloudError, GpuError, GroupFailed, GroupNotFound, PoolSpecError
from airflow_gpu_provider.pools import Candidate


class OwnedGkePlatform(GkePlatform):
    """A pool whose node pools this package creates, labels and deletes.

    Args:
        pool: The rendered spec.
        owner: Who writes the node pools, for the label that a PoolDrift names: "installation/dag id".
    """

    changes = (*GkePlatform.changes, "container.clusters.update")

    def __init__(self, pool: GkeGpuPool, owner: str = "") -> None:
        super().__init__(pool)
        self._owner = owner
        self._behind: Mapping[str, list[str]] = {}
        """The instance groups behind node pools, as last observed: the next call may not know a new node pool."""

    # -- where its node pools can be -------------------------------------------------------------------------

    @cached_property
    def _zones(self) -> tuple[str, ...]:
        return tuple(self._pool.node_locations or sorted(self._gke.description["locations"]))

    @cached_property
    def _offers(self) -> Offers:
        hardware = lambda name: f"{name} with {self._pool.accelerator_of(name)[0]}"  # noqa: E731
        offered = offered_types(self._gke.clients.compute, self._pool, self._zones)
        everywhere = self._pool.candidates(self._zones)
        return compare_offers(self._pool, everywhere, offered, cloud="Compute Engine", hardware=hardware)

    def candidates(self) -> tuple[Candidate, ...]:
        return self._offers.candidates

    # -- plan and apply --------------------------------------------------------------------------------------

    def _plan(self, nodes: int, left_out: Collection[str] = ()) -> Plan:
        found = self._gke.node_pools.read()
        candidates = [each for each in self.candidates() if each.group not in left_out]
        observed = self._observe({name: each for name, each in found.items() if is_owned(each, self._pool)})
        sizes = {group.name: len(group.machines) for group in observed}
        changes = gke_spec.changes(self._specs(candidates), found, sizes)
        grow = growth_notes(self._pool, nodes, candidates, observed, datetime.now(UTC))
        notes = (
            *self._offers.notes,
            *self._capacity_notes(),
            *self._upgrade_notes(),
            *preemptible_notes(self._pool),
            *queued_notes(self._pool),
            *autoscaling_notes(self._pool, found.values()),
        )
        return Plan(pool=self._pool.name, changes=changes, grow=grow, notes=notes, groups=observed)

    def _capacity_notes(self) -> tuple[str, ...]:
        pool = self._pool
        if "ON_DEMAND" not in pool.capacity_types or pool.flex_start or pool.reservation_affinity:
            return ()
        obtained = {name: " or ".join(machine_types.gce_obtained_by(name)) for name in pool.machine_types}
        return tuple(
            f"{name} is rarely available on demand; use {how} instead: see reservation_affinity, flex_start and"
            " capacity_types"
            for name, how in obtained.items()
            if how
        )

    @cached_property
    def _is_in_release_channel(self) -> bool:
        channel = (self._gke.description.get("release_channel") or {}).get("channel")
        return channel not in (None, "", "UNSPECIFIED")

    def _upgrade_notes(self) -> tuple[str, ...]:
        if not (self._pool.exclude_upgrades and self._is_in_release_channel) or knows_exclusions():
            return ()
        return (
            "GKE may upgrade the nodes in mid-run: the installed google-cloud-container cannot exclude them; 2.65 and"
            " later can",
        )

    def _specs(self, candidates: Sequence[Candidate]) -> tuple[NodePoolSpec, ...]:
        return tuple(
            NodePoolSpec(
                pool=self._pool,
                owner=self._owner,
                candidate=candidate,
                min_size=self._pool.min_nodes if self._pool.is_autoscaled and candidate == candidates[0] else 0,
                has_exclusions=self._is_in_release_channel and knows_exclusions(),
                is_in_channel=self._is_in_release_channel,
            )
            for candidate in candidates
        )

    def apply(self, plan: Plan, report: Report, over_quota: Collection[str] = ()) -> None:
        """Carry the plan out, and return when GKE is done with it: only then is its verdict known.

        Raises:
            OutOfStock, QuotaExceeded, GroupFailed: No node pool of the pool can be used.
        """
        wanted = {c.group for c in plan.changes if c.action != "create" or c.group not in over_quota}
        if not wanted:
            return
        found = self._gke.node_pools.read()
        specs = [spec for spec in self._specs(self.candidates()) if spec.candidate.group in wanted]
        failed = self._gke.operations.run([step for spec in specs for step in self._steps(spec, found)], report)
        for name, error in failed.items():
            report(f"{name}: {error}")
        if failed and len(failed) == len([c for c in self.candidates() if c.group not in over_quota]):
            raise _all_failed(self._pool, failed)

    def _steps(self, spec: NodePoolSpec, found: Mapping[str, Mapping[str, Any]]) -> list[Step]:
        """Return what creates, repairs or replaces one node pool."""
        name = spec.candidate.group
        create = Step(
            group=name,
            doing=f"create {name}: {spec.candidate}, size {spec.min_size}, at most {self._pool.max_nodes}",
            start=lambda: self._gke.node_pools.create(spec),
        )
        existing = found.get(name)
        # GKE taints no GPU nodes in a cluster whose node pools all have GPUs, and takes its taint only by an update.
        taint = Step(group=name, doing=f"update {name}: taints", start=lambda: self._taint_once_created(spec))
        if existing is None:
            return [create, taint]
        if existing.get("status") in gke_spec.GONE_SOON:
            return [Step(group=name, doing=create.doing, start=lambda: self._create_once_gone(spec)), taint]
        size = sum(len(group.managed) for group in self._gke.groups.read(group_paths(existing)))
        if existing.get("status") in gke_spec.FAILED and not size:
            return [self._deletion(name, why=", which has failed"), create, taint]
        return self._updates(spec, existing, size)

    def _taint_once_created(self, spec: NodePoolSpec) -> Mapping[str, Any] | None:
        name = spec.candidate.group
        created = self._gke.node_pools.describe(name) or {}
        updates = [each.update for each in spec.differences(created) if each.field == "taints" and each.update]
        return self._gke.node_pools.update(name, updates[0]) if updates else None

    def _create_once_gone(self, spec: NodePoolSpec) -> Mapping[str, Any] | None:
        if self._gke.node_pools.describe(spec.candidate.group):
            message = f"{spec.candidate.group} is currently being deleted"
            raise CloudError(f"{message}.", status="FAILED_PRECONDITION", message=message)
        return self._gke.node_pools.create(spec)

    def _updates(self, spec: NodePoolSpec, existing: Mapping[str, Any], size: int) -> list[Step]:
        name = spec.candidate.group
        differences = spec.differences(existing)
        now = gke_spec.possible_now(differences, size)
        updates = [(difference.field, dict(difference.update or {})) for difference in now]
        # The labels come last: until then the node pool still says that it has the old spec.
        labels = spec.missing_labels(existing)
        if labels and len(now) == len(differences):
            updates.append(("labels of its machines", {"resource_labels": {"labels": labels}}))
        update = self._gke.node_pools.update
        return [
            Step(group=name, doing=f"update {name}: {field}", start=partial(update, name, change))
            for field, change in updates
        ]

    # -- what there is ---------------------------------------------------------------------------------------

    def observe(self) -> tuple[Group, ...]:
        return self._observe(self._gke.node_pools.owned())

    def _observe(self, node_pools: Mapping[str, Mapping[str, Any]]) -> tuple[Group, ...]:
        """Read the instance groups behind node pools."""
        self._behind = {name: group_paths(each) for name, each in node_pools.items()}
        found = [
            GkeGroup(candidate=_candidate(each), node_pool=each, paths=self._behind[name])
            for name, each in node_pools.items()
        ]
        keeps = {name: (each.get("autoscaling") or {}).get("min_node_count") for name, each in node_pools.items()}
        groups = (replace(group, keeps=int(keeps[group.name] or 0)) for group in self._gke.observe(found))
        return ordered(self._pool, groups)

    def _paths_of(self, group: str) -> list[str]:
        if known := self._behind.get(group):
            return known
        raw = self._gke.node_pools.describe(group)
        paths = group_paths(raw) if raw else []
        if not paths:
            state = f"is {raw['status']} and has no instance group" if raw else "does not exist"
            raise GroupNotFound(f"Node pool {group} {state}.", "Run EnsureGpuPoolOperator again.", group=group)
        return paths

    def delete(self, report: Report) -> None:
        steps = [self._deletion(name) for name in self._gke.node_pools.owned()]
        for error in self._gke.operations.run(steps, report).values():
            raise error

    def _deletion(self, name: str, *, why: str = "") -> Step:
        return Step(group=name, doing=f"delete {name}{why}", start=lambda: self._gke.node_pools.delete(name))


def _candidate(node_pool: Mapping[str, Any]) -> Candidate:
    return Candidate(
        group=node_pool["name"],
        zone=labels_of(node_pool).get(ZONE_LABEL) or next(iter(node_pool.get("locations") or ()), ""),
        instance_type=(node_pool.get("config") or {}).get("machine_type", ""),
        market=market_of(node_pool),
    )


def _all_failed(pool: GkeGpuPool, failed: Mapping[str, GpuError]) -> GpuError:
    """Return one error for all node pools, of their own type where they agree."""
    what = f"Pool {pool.name} has no usable node pool: {by_reason({n: error.what for n, error in failed.items()})}."
    first = next(iter(failed.values()))
    if len({type(error) for error in failed.values()}) == 1:
        return type(first)(what, first.fix, groups=sorted(failed))
    return GroupFailed(what, "Correct what GKE reports, and run the task again.", groups=sorted(failed))


def autoscaling_notes(pool: GkeGpuPool, found: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    """Say what the first autoscaled node pool does to a cluster ("Autoscaling a cluster"); nothing where it has one."""
    if not pool.is_autoscaled or any((each.get("autoscaling") or {}).get("enabled") for each in found):
        return ()
    return (
        "no node pool of the cluster is autoscaled yet: with the first one the control plane may be away for some"
        " minutes, so run Ensure once ahead of the first night",
    )


def queued_notes(pool: GkeGpuPool) -> tuple[str, ...]:
    """Return what several zones do for a pool whose nodes come by ProvisioningRequests.

    GoogleCloudPlatform/cluster-autoscaler, provisioningrequests/scaleup/orchestrator.go: one node group is chosen when
    a request is accepted.
    """
    if not pool.queued_provisioning or len(pool.node_locations) == 1:
        return ()
    return ("with queued_provisioning GKE chooses one zone for each request, and tries no other while it waits there",)


def preemptible_notes(pool: GkeGpuPool) -> tuple[str, ...]:
    """Return a note on the machines that a spec gets for PREEMPTIBLE."""
    if PREEMPTIBLE not in pool.capacity_types:
        return ()
    return ("PREEMPTIBLE means SPOT: the machines are spot, at the same price, and have no end after 24 hours",)


def offered_types(compute: Rest, pool: GkeGpuPool, zones: Sequence[str]) -> set[tuple[str, str]]:
    """Return the (zone, machine type) pairs that Compute Engine offers, attached accelerators included.

    Raises:
        PoolSpecError: A zone does not exist.
    """
    pairs = [(zone, machine_type) for zone in zones for machine_type in pool.machine_types]
    offered = in_parallel(lambda pair: _is_offered(compute, pool, *pair), pairs)
    return {pair for pair, yes in zip(pairs, offered, strict=True) if yes}


def _is_offered(compute: Rest, pool: GkeGpuPool, zone: str, machine_type: str) -> bool:
    if not _exists(compute, pool, zone, f"machineTypes/{machine_type}", "compute.machineTypes.get"):
        return False
    machine = machine_types.gce_machine_type(machine_type)
    if machine and machine.gpu:
        return True
    kind = pool.accelerator_of(machine_type)[0]
    return _exists(compute, pool, zone, f"acceleratorTypes/{kind}", "compute.acceleratorTypes.get")


def _exists(compute: Rest, pool: GkeGpuPool, zone: str, what: str, permission: str) -> bool:
    try:
        compute.get(f"projects/{pool.project_id}/zones/{zone}/{what}", permission=permission)
    except CloudError as error:
        if has_code(error, "NOT_FOUND"):
            return False
        if has_code(error, "INVALID_ARGUMENT"):
            raise PoolSpecError(
                f"Pool {pool.name}: {message_of(error)}.", f"Correct node_locations; the region is {pool.region}."
            ) from error
        raise
    return True
