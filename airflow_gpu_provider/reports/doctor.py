"""What would stop tonight's run of a pool: each thing is looked at, and nothing is changed.

A call to the cloud that only writes (to create a node group, say) is not tried: to ask whether it is allowed takes
permissions that a night does not need. Inside the cluster every verb is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import timedelta
from functools import cached_property
from typing import Any, Literal

from airflow_gpu_provider.addons.detection import look, served_by
from airflow_gpu_provider.cluster.autoscaler_status import check_running
from airflow_gpu_provider.errors import CredentialsError, GpuError
from airflow_gpu_provider.platforms.backoff import passed_over
from airflow_gpu_provider.pools import GpuPool
from airflow_gpu_provider.reports.permissions import PLUGIN, Rule, missing, rules
from airflow_gpu_provider.scaling.reconcile import Reconciler
from airflow_gpu_provider.scaling.snapshot import PoolSnapshot
from airflow_gpu_provider.scaling.supply import READY_WITHIN

LATELY = timedelta(days=1)
"""How far back failed launches are told."""

Result = Literal["ok", "warning", "problem"]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What one check found: `said` in words, and `fix`, what to do about it."""

    pool: str
    check: str
    result: Result
    said: str
    fix: str = ""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def examine(pool: GpuPool, connect: Callable[[], Reconciler], *, pod_namespace: str = "default") -> tuple[Finding, ...]:
    """Return what each check found, the credentials first; where those fail, there is nothing more to ask.

    Args:
        pool: The (rendered) spec.
        connect: Connects to it, as `open_pool` does.
        pod_namespace: Where the pool's pods run.
    """
    try:
        reconciler = connect()
        where = reconciler.platform.account()
    except GpuError as error:
        return (_problem(pool, "credentials" if isinstance(error, CredentialsError) else "cluster", error),)
    doctor = _Doctor(reconciler, pod_namespace)
    findings = [Finding(pool=pool.name, check="credentials", result="ok", said=where)]
    for name, check in doctor.checks().items():
        try:
            findings += [Finding(pool=pool.name, check=name, result=r, said=s, fix=f) for r, s, f in check()]
        except GpuError as error:
            findings.append(_problem(pool, name, error))
    return tuple(findings)


def _problem(pool: GpuPool, check: str, error: GpuError) -> Finding:
    return Finding(pool=pool.name, check=check, result="problem", said=error.what, fix=error.fix)


Said = Iterator[tuple[Result, str, str]]


class _Doctor:
    """The checks of one pool; each yields a result, what it found, and what to do."""

    def __init__(self, reconciler: Reconciler, pod_namespace: str) -> None:
        self._on = reconciler
        self._pool = reconciler.pool
        self._namespace = pod_namespace

    def checks(self) -> dict[str, Callable[[], Said]]:
        """Return them by name, in the order in which a run would meet them."""
        found: dict[str, Callable[[], Said]] = {
            "cluster": self._cluster,
            "permissions": self._permissions,
            "groups": self._groups,
            "quota": self._quota,
            "stock": self._stock,
            "device plugin": self._plugin,
            "driver": self._driver,
        }
        if self._pool.is_autoscaled:
            found["autoscaler"] = self._autoscaler
        return found

    @cached_property
    def _seen(self) -> PoolSnapshot:
        return self._on.snapshot()

    def _cluster(self) -> Said:
        live = sum(lease.live(self._seen.now) for lease in self._seen.leases)
        nodes = len(self._seen.nodes)
        yield "ok", f"reached; {nodes} nodes of the pool are there, and {live} runs want some", ""

    def _permissions(self) -> Said:
        refused = missing(self._on.api, rules(self._namespace))
        yield from map(_refusal, refused)
        if not refused:
            yield "ok", f"all that a run does in the cluster, with pods in namespace {self._namespace}", ""

    def _groups(self) -> Said:
        plan = self._on.platform.plan(self._pool.max_nodes)
        for change in plan.changes:
            yield "ok", f"the next run will {change.action} {change.group}: {change.detail}", ""
        for note in plan.notes:
            yield "ok", note, ""
        for group in self._seen.groups:
            for issue in group.issues:
                yield "warning", f"{group.name}: {issue}", "See the group in the cloud's console."
        if not plan.changes and not plan.notes:
            yield "ok", f"{len(self._seen.groups)} groups, as the spec has them", ""

    def _quota(self) -> Said:
        notes: list[str] = []
        self._on.platform.check_quota(self._pool.max_nodes, notes.append)
        for note in notes:
            yield "warning", note, "Ask for a higher quota, or name other machines too."
        if not notes:
            yield "ok", f"enough for max_nodes={self._pool.max_nodes}", ""

    def _stock(self) -> Said:
        now = self._seen.now
        over = passed_over(self._seen.groups, now)
        quiet = True
        for group in self._seen.groups:
            lately = [failure for failure in group.failures if now - failure.at < LATELY]
            if lately:
                quiet = False
                still = f"; passed over until {over[group.name].until:%H:%M}Z" if group.name in over else ""
                last = lately[-1]
                said = f"{group.candidate}: {len(lately)} launches failed, last at {last.at:%H:%M}Z: {last.reason}"
                yield "warning", said + still, "Name more zones, types or markets; see give_up_after= of Ensure."
        if quiet:
            yield "ok", "no launch failed in a day, as far as the cloud remembers", ""

    def _plugin(self) -> Said:
        servers, is_installed = look(self._on.api, self._pool)
        server = served_by(self._pool, servers, ours=is_installed)
        if server:
            yield "ok", f"GPUs are handed out by {server}", ""
            return
        yield from map(_refusal, missing(self._on.api, (PLUGIN,)))
        if is_installed:
            yield "ok", "this package's device plugin is installed", ""
        else:
            yield "ok", "none yet: InstallDevicePluginOperator, which gpu_nodes brings, installs it", ""

    def _driver(self) -> Said:
        now = self._seen.now
        blind = [
            node
            for node in self._seen.nodes
            if node.ready and not node.gpus and now - (node.ready_changed_at or node.created_at) > READY_WITHIN
        ]
        for node in blind:
            yield (
                "problem",
                f"node {node.name} is Ready and has no allocatable GPU",
                "Look at its device plugin's and driver's pods.",
            )
        if not blind:
            yield "ok", _driver_words(self._pool), ""

    def _autoscaler(self) -> Said:
        status = check_running(self._on.api, self._pool.name, self._seen.now)
        names = {group.autoscaler_name or group.name for group in self._seen.groups}
        for name, why in status.backoff.items():
            if name in names:
                yield "warning", f"cluster-autoscaler backs off from {name}: {why}", "Name more zones or types."
        yield "ok", "cluster-autoscaler is alive", ""


def _refusal(rule: Rule) -> tuple[Result, str, str]:
    return "problem", f"may not {rule}", "Grant it: docs/rbac/full.yaml has the roles."


def _driver_words(pool: GpuPool) -> str:
    ami_type, driver = getattr(pool, "ami_type", ""), getattr(pool, "driver", "")
    if ami_type and ami_type != "CUSTOM":
        return f"nodes have it from their image, {ami_type}"
    if driver in ("default", "latest"):
        return f"GKE installs it ({driver})"
    if driver == "daemonset":
        return "InstallDevicePluginOperator installs it by a DaemonSet"
    return "the nodes' owner brings it; no node without GPUs is seen"
