"""The wait for a pool's allocatable GPUs: GpusWait, which is pure, and `watch_plugin`, the loop around its `step`.

The trigger runs that loop, and so does the operator for its first seconds.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from airflow_gpu_provider.accelerators import GPU_RESOURCE
from airflow_gpu_provider.addons.device_plugin import CONTAINER, PLUGIN_LABELS
from airflow_gpu_provider.clouds.base import Report
from airflow_gpu_provider.cluster.api.informer import Change, Feed, troubles_in_words, watching
from airflow_gpu_provider.cluster.api.rest import label_selector
from airflow_gpu_provider.cluster.api.watched import Resource, pool_nodes
from airflow_gpu_provider.cluster.model.node import Node
from airflow_gpu_provider.cluster.model.pod_log import lines_of, shown
from airflow_gpu_provider.cluster.model.pod_state import Json, PodState
from airflow_gpu_provider.errors import ClusterUnreachable, GpuError, GpusNotAllocatable
from airflow_gpu_provider.pools import GpuPool
from airflow_gpu_provider.pools.gpu_pool import POOL_LABEL
from airflow_gpu_provider.scaling.wait.records import Narrator, Progress, Record, phase
from airflow_gpu_provider.scaling.wait.retry import Tolerance
from airflow_gpu_provider.times import format_seconds
from airflow_gpu_provider.training.watch.watch_loop import cluster_access

_LONGEST_WAIT = 60.0
_FIRST_LOOK = timedelta(seconds=30)
"""How long the first look may take also where the wait's time is over, because its triggerer was away say."""


# What a kubelet calls a container that it starts again and again, or has no image for.
_STUCK = frozenset({"CrashLoopBackOff", "ErrImagePull", "ImagePullBackOff"})


@dataclass(frozen=True, kw_only=True)
class PluginSnapshot:
    """The pool's nodes, and the plugin's pods by the node they run on."""

    nodes: tuple[Node, ...]
    pods: Mapping[str, PodState]


@dataclass(frozen=True, kw_only=True)
class GpusWait(Record):
    """The wait until every node of the pool that is there has allocatable GPUs; done at once where there is none."""

    pool: str
    server: str
    started: datetime
    deadline: datetime

    def step(self, snapshot: PluginSnapshot, now: datetime) -> Progress:
        """Return whether the GPUs are allocatable; `lines` describes the present state, for the log."""
        nodes = [node for node in snapshot.nodes if not (node.cordoned or node.autoscaler_deleting or node.leaving)]
        missing = [node for node in nodes if node.gpus == 0]
        lines = tuple(self._line(node, snapshot) for node in nodes)
        if not missing:
            phases = [phase("GPUs allocatable", self.started, now)] if nodes else []
            result = {"nodes": {node.name: node.gpus for node in nodes}, "timeline": phases}
            return Progress(done=True, lines=lines, result=result)
        if now < self.deadline:
            return Progress(lines=lines)
        stuck = missing[0]
        error = GpusNotAllocatable(
            f"Pool {self.pool}: {GPU_RESOURCE} is not allocatable on {', '.join(node.name for node in missing)} "
            f"after {format_seconds(now - self.started)}; {self._line(stuck, snapshot)}.",
            f"{driver_fix(stuck)} See the device plugin's log.",
            pool=self.pool,
            node=stuck.name,
        )
        return Progress(lines=lines, error=error, result={"stuck": stuck.name})

    def _line(self, node: Node, snapshot: PluginSnapshot) -> str:
        if node.gpus:
            return f"node {node.name} has nvidia.com/gpu allocatable: {node.gpus}"
        pod = snapshot.pods.get(node.name)
        state = plugin_state(pod) if pod else f"served by {self.server}"
        ready = "" if node.ready else f", not Ready ({node.not_ready_reason})"
        return f"node {node.name}{ready} has no allocatable GPUs yet: {state}"


def driver_fix(node: Node) -> str:
    """Return what to do about a node that has GPUs, and none of them allocatable, as far as its image tells."""
    if node.image.driver:
        return f"{node.image.driver} installs NVIDIA's driver; check that the node has it."
    return f"The node runs {node.image}, which may lack NVIDIA's driver. {node.image.fix}"


def has_failed(pod: PodState) -> bool:
    """Return True if the plugin ended with an error, or its image cannot be pulled: waiting alone will not help.

    Between two of its ends it is started again, and may be seen running.
    """
    base = pod.base
    return base is not None and (base.reason in _STUCK or bool(base.exit_code) or base.failed_before is not None)


def plugin_state(pod: PodState) -> str:
    base = pod.base
    if base is None:
        return f"plugin pod {pod.name} is {pod.phase}"
    if base.status == "running":
        again = f" again, after exit code {base.failed_before.exit_code}," if base.failed_before else ""
        return f"plugin pod {pod.name} is running{again} and has not registered any GPU"
    reason = f"{base.reason}: {base.message}".strip(": ")
    return f"plugin pod {pod.name} is {base.status} ({reason or 'no reason given'})"


def plugin_pods(namespace: str) -> Resource:
    """The pods of the device plugins that this package installed; keyed by the pool's name."""
    return Resource(
        path=f"api/v1/namespaces/{namespace}/pods",
        key=_pool,
        label_selector=label_selector(PLUGIN_LABELS),
    )


def _pool(raw: Json) -> str:
    return str((raw["metadata"].get("labels") or {}).get(POOL_LABEL) or "")


async def watch_plugin(
    pool: GpuPool, wait: GpusWait, *, namespace: str, report: Report, until: datetime | None = None
) -> Progress:
    """Wait for the pool's GPUs; returns how the wait stands at its end, or at `until`."""
    pods = plugin_pods(namespace)
    narrator = Narrator(report, started=wait.started)
    end = min(until or wait.deadline, wait.deadline)
    # Where the platform brings the plugin none of our pods is there, nor a role to watch them.
    own = {} if pool.nodes_to_come.platform else {pods: pool.name}
    wants = {**own, **pool_nodes(pool.node_selector)}
    async with watching(pool.cluster_identity, lambda: cluster_access(pool), wants) as feed:
        now = await feed.api.now()
        first_look = max(end, now + _FIRST_LOOK)
        view = _View(wants, pods, Tolerance(max(wait.deadline, now + _FIRST_LOOK), worked=True))
        while True:
            now = await feed.api.now()
            view.raise_if_final(now)
            if view.is_synced:
                progress = wait.step(view.snapshot(), now)
                narrator.log(now, *progress.lines, *view.troubles)
                if progress.error:
                    return await _with_last_words(feed, view, namespace, progress)
                if progress.done or now >= end:
                    return progress
            else:
                narrator.log(now, *view.troubles)
                if now >= first_look:
                    return Progress(error=_unseen(pool) if now >= wait.deadline else None)
            left = (end if view.is_synced else first_look) - now
            view.take(await feed.changes(timeout=min(left.total_seconds(), _LONGEST_WAIT)))


def _unseen(pool: GpuPool) -> ClusterUnreachable:
    return ClusterUnreachable(
        f"Pool {pool.name}: the API server has not listed the pool's nodes yet; GPU status unknown.",
        "Check that the server can be reached from where Airflow runs; the next try starts the wait again.",
        pool=pool.name,
    )


class _View:
    def __init__(self, wants: Collection[Resource], pods: Resource, patience: Tolerance) -> None:
        self._wants = wants
        self._pods_resource = pods
        self._patience = patience
        self._shown: set[Resource] = set()
        self._nodes: dict[str, Node] = {}
        self._pods: dict[str, PodState] = {}
        self._troubles: dict[Resource, GpuError] = {}

    @property
    def troubles(self) -> list[str]:
        return troubles_in_words(self._troubles.values())

    @property
    def is_synced(self) -> bool:
        """Whether all nodes are known, and the plugin's pods as far as they may be read: these only explain."""
        return len(self._shown) == len(self._wants)

    def raise_if_final(self, now: datetime) -> None:
        """Raise why the nodes cannot be watched, where that has lasted."""
        error = next((error for resource, error in self._troubles.items() if resource != self._pods_resource), None)
        if error is None:
            self._patience.succeeded()
        elif not self._patience.allows(error, now) and not isinstance(error, ClusterUnreachable):
            raise error

    def snapshot(self) -> PluginSnapshot:
        nodes = tuple(sorted(self._nodes.values(), key=lambda node: node.name))
        return PluginSnapshot(nodes=nodes, pods={pod.node: pod for pod in self._pods.values() if pod.node})

    def take(self, changes: list[Change]) -> None:
        for change in changes:
            if change.kind == "trouble" and change.error:
                self._troubles[change.resource] = change.error
                if change.resource == self._pods_resource:
                    self._shown.add(change.resource)
                continue
            self._troubles.pop(change.resource, None)
            if change.kind == "synced":
                self._shown.add(change.resource)
            elif change.raw and change.resource == self._pods_resource:
                self._take_pod(change)
            elif change.raw:
                self._take_node(change)

    def _take_pod(self, change: Change) -> None:
        pod = PodState.parse(change.raw, CONTAINER)
        self._pods.pop(pod.uid, None)
        if change.kind == "present":
            self._pods[pod.uid] = pod

    def _take_node(self, change: Change) -> None:
        node = Node.parse(dict(change.raw))
        self._nodes.pop(node.name, None)
        if change.kind == "present":
            self._nodes[node.name] = node


async def _with_last_words(feed: Feed, view: _View, namespace: str, progress: Progress) -> Progress:
    """Add the last line that the plugin logged on the node that is stuck."""
    pod = view.snapshot().pods.get(str((progress.result or {}).get("stuck")))
    error = progress.error
    if pod is None or error is None:
        return progress
    path = f"api/v1/namespaces/{namespace}/pods/{pod.name}/log"
    try:
        log = await feed.api.text(path, container=CONTAINER, tailLines="3")
    except GpuError:
        return progress
    lines = lines_of(log or "")
    if not lines:
        return progress
    with_log = GpusNotAllocatable(
        f"{error.what} Its last log line: {shown(lines[-1]).strip()}", error.fix, **error.details
    )
    return Progress(lines=progress.lines, error=with_log, result=progress.result)
