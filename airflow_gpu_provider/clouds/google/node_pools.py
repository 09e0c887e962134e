"""Calls to GKE about node pools: read them, and start to create, update and delete them."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from airflow_gpu_provider.clouds.answers import GroupUpdate, has_code, message_of, refusals_of, unless_answered
from airflow_gpu_provider.clouds.base import Report
from airflow_gpu_provider.clouds.google.clients import Gke
from airflow_gpu_provider.clouds.google.errors import error_of_operation
from airflow_gpu_provider.clouds.google.instance_groups import parse_time, path_of
from airflow_gpu_provider.clouds.google.pool import GkeGpuPool
from airflow_gpu_provider.clouds.google.spec import POOL_LABEL, NodePoolSpec, labels_of
from airflow_gpu_provider.errors import CloudError, ClusterNotFound, GpuError, PoolSpecError

_READ = "container.clusters.get"
_WRITE = "container.clusters.update"
_BLUE_STAYS = ("UPDATE_STARTED", "CREATING_GREEN_POOL", "ROLLBACK_STARTED")


class NodePools:
    """The node pools of one pool's cluster. Every method makes fresh calls."""

    def __init__(self, gke: Gke, pool: GkeGpuPool) -> None:
        self._gke = gke
        self._pool = pool
        self.location = f"projects/{pool.project_id}/locations/{pool.location}"
        self._cluster_path = f"{self.location}/clusters/{pool.cluster_name}"

    def cluster(self) -> Mapping[str, Any]:
        """Return GKE's Cluster.

        Raises:
            ClusterNotFound: There is no such cluster.
            PoolSpecError: It is an Autopilot cluster, which has no node pools.
        """
        pool = self._pool
        found = self._of_cluster("get_cluster", name=self._cluster_path)
        if (found.get("autopilot") or {}).get("enabled"):
            raise PoolSpecError(
                f"Pool {pool.name}: {pool.cluster_name} is an Autopilot cluster, which has no node pools.",
                'Use KubernetesGpuPool(provisioner="autopilot").',
            )
        return found

    def read(self) -> dict[str, Mapping[str, Any]]:
        """Return all node pools of the cluster by name."""
        answer = self._of_cluster("list_node_pools", parent=self._cluster_path)
        return {each["name"]: each for each in answer.get("node_pools") or ()}

    def owned(self) -> dict[str, Mapping[str, Any]]:
        """Return those of `read` that this package created for the pool, today's spec or an earlier one's."""
        return {name: each for name, each in self.read().items() if is_owned(each, self._pool)}

    def describe(self, name: str) -> Mapping[str, Any] | None:
        with unless_answered("NOT_FOUND"):
            return self._gke.call("get_node_pool", permission=_READ, name=self._path(name))
        return None

    def create(self, spec: NodePoolSpec) -> Mapping[str, Any] | None:
        """Start to create a node pool of size 0; None if another run creates it just now."""
        doing, node_pool = f"create {spec.candidate.group}", spec.node_pool()
        with unless_answered("ALREADY_EXISTS"), refusals_of("GKE", self._pool, doing, "INVALID_ARGUMENT"):
            return self._gke.call("create_node_pool", permission=_WRITE, parent=self._cluster_path, node_pool=node_pool)
        return None

    def update(self, name: str, change: Mapping[str, Any]) -> Mapping[str, Any]:
        """Start to change one field of a node pool: autoscaling, or another in UpdateNodePool's words."""
        method = "set_node_pool_autoscaling" if "autoscaling" in change else "update_node_pool"
        with refusals_of("GKE", self._pool, f"update {name}", "INVALID_ARGUMENT"):
            return self._gke.call(method, permission=_WRITE, name=self._path(name), **change)

    def delete(self, name: str) -> Mapping[str, Any] | None:
        """Start to delete a node pool; None if it is gone."""
        with unless_answered("NOT_FOUND"):
            return self._gke.call("delete_node_pool", permission=_WRITE, name=self._path(name))
        return None

    def _path(self, name: str) -> str:
        return f"{self._cluster_path}/nodePools/{name}"

    def _of_cluster(self, method: str, **which: str) -> dict[str, Any]:
        pool = self._pool
        try:
            return self._gke.call(method, permission=_READ, **which)
        except CloudError as error:
            if not has_code(error, "NOT_FOUND"):
                raise
            raise ClusterNotFound(
                f"There is no GKE cluster {pool.cluster_name} in {pool.location} of project {pool.project_id}.",
                "Check cluster_name, location (a zone for a zonal cluster) and project_id.",
                **error.details,
            ) from error


def is_owned(node_pool: Mapping[str, Any], pool: GkeGpuPool) -> bool:
    """Return True if this package created the node pool for this pool."""
    return labels_of(node_pool).get(POOL_LABEL) == pool.name


def knows_exclusions() -> bool:
    """Return True where the installed client library knows node pools' maintenance exclusions: from 2.65 on."""
    from google.cloud.container_v1.types import NodePool

    return "maintenance_policy" in NodePool.meta.fields


def group_paths(node_pool: Mapping[str, Any]) -> list[str]:
    """Return the paths of the instance groups behind a node pool: none while GKE has not made them.

    During a blue-green upgrade there are both sides'; the side that stays comes first, and it is the one to grow.
    """
    paths = [path_of(url) for url in node_pool.get("instance_group_urls") or ()]
    leaving = _leaving_paths((node_pool.get("update_info") or {}).get("blue_green_info") or {})
    return sorted(paths, key=leaving.__contains__)


def _leaving_paths(upgrade: Mapping[str, Any]) -> set[str]:
    """Return the groups whose nodes a blue-green upgrade drains, or ends where it is rolled back."""
    side = "green" if upgrade.get("phase") in _BLUE_STAYS else "blue"
    return {path_of(url) for url in upgrade.get(f"{side}_instance_group_urls") or ()}


# -- GKE's operations: started one after another where GKE wants that, and watched to their end ---------------------

PATIENCE = 1200.0
"""Seconds after which operations of GKE, one's own and others' that are in the way, are waited for no longer."""

UPGRADE_OF_A_NODE = timedelta(hours=1, minutes=15)
"""How long the upgrade of one node may take: its pods' budgets and grace periods are honoured for an hour ("Node
upgrade strategies"), and the node in its place has to come."""

_POLL = (0.5, 5.0)
_BUSY = re.compile(
    r"incompatible operation|operation-\S+ is currently|is currently being (created|deleted|updated|repaired)"
    r"|CLUSTER_ALREADY_HAS_OPERATION",
    re.IGNORECASE,
)


@dataclass(frozen=True, kw_only=True)
class Step:
    """One change of one node pool.

    `start` starts it and returns the operation, or None where there is nothing to do; `doing` says it in words.
    The steps of one group are taken in order, and those after a failed one are not taken.
    """

    group: str
    doing: str
    start: Callable[[], Mapping[str, Any] | None]


class Operations:
    """Carries out changes of a cluster's node pools.

    Args:
        location: "projects/P/locations/L", where the operations are.
    """

    def __init__(self, gke: Gke, location: str, cluster: str) -> None:
        self._gke = gke
        self._location = location
        self._cluster = cluster

    def run(self, steps: Sequence[Step], report: Report) -> dict[str, GpuError]:
        """Take all steps, as many at a time as GKE lets, and return what failed, by group.

        Raises:
            GpuError: GKE cannot be called at all.
        """
        return _Run(self, steps, report, deadline=time.monotonic() + PATIENCE).to_end()

    def under_way(self) -> dict[str, GroupUpdate]:
        """Return what is done now to the cluster's node pools, by their names; by "" what is done to the cluster.

        Raises:
            PermissionDenied: The account may not list operations.
        """
        answer = self._gke.call("list_operations", permission="container.operations.list", parent=self._location)
        found = {}
        for operation in answer.get("operations") or ():
            _, _, target = str(operation.get("target_link", "")).partition("/clusters/")
            on, _, node_pool = target.partition("/nodePools/")
            if on == self._cluster and operation.get("status") != "DONE":
                found[node_pool] = self._update(operation)
        return found

    def in_the_way(self, refusal: str) -> str:
        """Return what a change waits for that GKE refused in these words; empty where that may not be read.

        Some name the operation; where they do not, it is the cluster's own.
        """
        try:
            found = self.under_way()
        except GpuError:  # this is for the words alone
            return ""
        named = [update for update in found.values() if update.name in refusal]
        return ", ".join(map(str, named or [found[each] for each in found if not each]))

    def _update(self, operation: Mapping[str, Any]) -> GroupUpdate:
        name, (_, project, _, location) = str(operation["name"]), self._location.split("/")
        began, where = operation.get("start_time"), f"{name} --location={location} --project={project}"
        return GroupUpdate(
            name=name,
            kind=str(operation.get("operation_type", "")),
            since=parse_time(str(began)) if began else None,
            what_to_do=f"See gcloud container operations describe {where}; one that hangs ends by cancel in its place.",
            takes=UPGRADE_OF_A_NODE,
        )

    def get(self, name: str) -> Mapping[str, Any]:
        return self._gke.call(
            "get_operation", permission="container.operations.get", name=f"{self._location}/operations/{name}"
        )


class _Run:
    """One call of `Operations.run`."""

    def __init__(self, operations: Operations, steps: Sequence[Step], report: Report, *, deadline: float) -> None:
        self._operations = operations
        self._waiting = list(steps)
        self._running: dict[str, tuple[Step, str]] = {}
        self._failed: dict[str, GpuError] = {}
        self._report = report
        self._refusals: dict[str, str] = {}
        self._deadline = deadline

    def to_end(self) -> dict[str, GpuError]:
        pause = _POLL[0]
        while True:
            self._start_what_can_start()
            if not self._waiting and not self._running:
                return self._failed
            if time.monotonic() > self._deadline:
                self._give_up()
                return self._failed
            time.sleep(pause)
            pause = min(pause * 1.5, _POLL[1])
            self._look()

    def _start_what_can_start(self) -> None:
        still_waiting: list[Step] = []
        for step in self._waiting:
            if step.group in self._failed:
                continue
            behind_another = any(other.group == step.group for other in still_waiting)
            if behind_another or step.group in self._running or not self._start(step):
                still_waiting.append(step)
        self._waiting = still_waiting

    def _start(self, step: Step) -> bool:
        """Return whether the step was started, or failed: it need not be tried again."""
        try:
            operation = step.start()
        except CloudError as error:
            if not is_busy(error):
                self._failed[step.group] = error
                return True
            self._tell_what_it_waits_for(step, message_of(error))
            return False
        except GpuError as error:
            self._failed[step.group] = error
            return True
        if operation is not None:
            self._report(step.doing)
            self._running[step.group] = (step, str(operation["name"]))
        return True

    def _tell_what_it_waits_for(self, step: Step, refusal: str) -> None:
        if self._refusals.get(step.group) == refusal:
            return
        self._refusals[step.group] = refusal
        other = self._operations.in_the_way(refusal)
        self._report(f"{step.doing} waits: {refusal}{f' ({other})' if other else ''}")

    def _look(self) -> None:
        for group, (step, name) in list(self._running.items()):
            operation = self._operations.get(name)
            if operation.get("status") != "DONE":
                continue
            del self._running[group]
            error = error_of(operation, doing=step.doing)
            if error:
                self._failed[group] = error

    def _give_up(self) -> None:
        doing = [step.doing for step, _ in self._running.values()] + [step.doing for step in self._waiting]
        refused = {self._refusals[step.group] for step in self._waiting if step.group in self._refusals}
        others = sorted(filter(None, map(self._operations.in_the_way, refused)))
        because = f" It waited for {'; '.join(others)}." if others else ""
        error = CloudError(
            f"GKE has not ended in {PATIENCE:.0f} s: {'; '.join(doing)}.{because}",
            "Run the task again once the cluster's operations have ended (gcloud container operations list): an upgrade"
            " of a regional control plane may take longer than this.",
        )
        for group in (*self._running, *(step.group for step in self._waiting)):
            self._failed.setdefault(group, error)


def is_busy(error: GpuError) -> bool:
    """Return True if GKE refused a change only because other operations are under way.

    It says so of one ("Cluster is running incompatible operation ...", or "Operation operation-... is currently
    deleting a node pool ...": terraform-provider-google issue 10366), of the cluster ("... is currently being created,
    deleted, updated or repaired", issue 7638 there), and of too many node pools' ("hits the concurrent operations
    quota", issue 15579). The reason is CLUSTER_ALREADY_HAS_OPERATION (cluster-api-provider-gcp issue 1363). A refusal
    with the word "operation" alone may be for good.
    """
    if has_code(error, "RESOURCE_EXHAUSTED"):
        return "concurrent operations quota" in message_of(error)
    if not has_code(error, "FAILED_PRECONDITION", "ABORTED"):
        return False
    return _BUSY.search(f"{message_of(error)} {error.details.get('reasons', '')}") is not None


def error_of(operation: Mapping[str, Any], *, doing: str) -> GpuError | None:
    """Return what went wrong in an operation that is DONE, or None where it worked."""
    conditions = [*(operation.get("nodepool_conditions") or ()), *(operation.get("cluster_conditions") or ())]
    error = operation.get("error") or {}
    message = str(error.get("message") or "") or "; ".join(
        str(c.get("message")) for c in conditions if c.get("message")
    )
    failed = bool(error.get("code") or message or conditions)
    code = " ".join(dict.fromkeys(str(c.get("code")) for c in conditions)) or str(operation.get("status_message") or "")
    return error_of_operation(code or "UNKNOWN", message, doing=doing) if failed else None
