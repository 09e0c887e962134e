"""Nodes that no ScaleDownSensor releases.

These are the nodes of a pod that no demand covers (its task has no `gpu_nodes` block, or was cleared alone after the
run's scale-down), of a run that Airflow ended together with its teardowns, as dagrun_timeout does, and of an Ensure
that failed. The process that has waited for them releases them. It may be killed meanwhile, so each check first moves
the switch to soon after the end of what they still wait for.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Protocol

from airflow_gpu_provider.clouds.base import Group, Report
from airflow_gpu_provider.cluster.model.pool_pod import Pod
from airflow_gpu_provider.errors import GpuError, PoolNotEnsured
from airflow_gpu_provider.pools import GpuPool
from airflow_gpu_provider.pools.demand_key import DemandKey
from airflow_gpu_provider.scaling.apply.reconcile import Reconciler
from airflow_gpu_provider.scaling.decide.decisions import Decision, decide
from airflow_gpu_provider.scaling.decide.snapshot import PoolSnapshot
from airflow_gpu_provider.scaling.wait.records import Narrator

WHEN_KILLED = timedelta(seconds=1)
"""How long a task continues after SIGTERM: SIGKILL follows 5 s later, and the task has to report to Airflow before."""

_EVERY = 2.0
_AFTER_GRACE = timedelta(minutes=1)

_log = logging.getLogger(__name__)


class Log(Protocol):
    """What a task, or a trigger, logs with."""

    def info(self, message: str, /, *args: Any) -> Any: ...

    def error(self, message: str, /, *args: Any) -> Any: ...


def check_nodes_can_come(pool: GpuPool, observe: Callable[[], Collection[Group]]) -> None:
    """Check that a pool without demand has nodes for a pod, or groups that can provide them.

    If the cloud does not answer `observe` (Platform.observe), the check passes: the wait will report more.

    Raises:
        PoolNotEnsured: There is no node group, or, in a pool of external nodes, no node.
    """
    try:
        groups = observe()
    except GpuError as error:
        _log.warning("Whether pool %s has nodes is not known: %s", pool.name, error)
        return
    if any(group.live or group.provisioner or group.when_idle == "remove" for group in groups):
        return
    what = "no node has its label" if groups else "it has no node group"
    raise PoolNotEnsured(
        f"Pool {pool.name}: {what}, and no run wants its nodes; the pod was not created, since it would wait for ever.",
        "Run EnsureGpuPoolOperator(nodes=0) for the pool once, or put the task into a `with gpu_nodes(...)` block; "
        "in a block, let it wait for the block's Ensure: a trigger_rule like 'always' does not.",
        pool=pool.name,
    )


def release_now(
    reconciler: Reconciler,
    key: DemandKey,
    *,
    report: Report,
    own: Collection[str] = (),
    within: timedelta | None = None,
) -> None:
    """Release the demand, if there still is any, and whatever no run wants once the own pods have ended.

    Pods and demand of other runs keep their nodes; each run waits for its own.

    Args:
        own: The uids of the caller's own pods. Default: none.
        within: How long to continue. Default: a minute longer than the own pods' grace period.

    Raises:
        GpuError: An error of the cluster or the cloud; the next check of the pool releases the rest.
    """
    narrator = Narrator(report, started=reconciler.clock.now())
    pause = _EVERY if within is None else min(_EVERY, within.total_seconds())
    give_up_at: datetime | None = None
    while True:
        outcome = reconciler.delete_demand_and_reconcile(key)
        now = outcome.snapshot.now
        stays = [*_staying(outcome.snapshot, outcome.decision, own)]
        narrator.log(now, *outcome.log_lines, *(each.words for each in stays))
        waited_for = [each.pod for each in stays if each.is_waited_for]
        # Neither is certain to succeed: AWS terminates no machine while it is launching, and reduces no size meanwhile.
        if not waited_for and not (outcome.decision.release or outcome.decision.shrink):
            return
        if give_up_at is None:
            last = max([now, *(pod.delete_at or now for pod in waited_for)])
            give_up_at = last + _AFTER_GRACE if within is None else now + within
        if now >= give_up_at:
            report(f"stopped waiting for pool {key.pool}")
            return
        time.sleep(pause)


def release_quietly(
    opened: Callable[[], Reconciler | None],
    key: DemandKey,
    *,
    log: Log,
    own: Collection[str] = (),
    within: timedelta | None = None,
    report: Report | None = None,
) -> None:
    """Do as `release_now`; an error is only logged: it would hide why the nodes are given back.

    Args:
        opened: Returns the pool, connected; None if the nodes are another's to release.
        key, own, within: As for `release_now`.
    """
    report = report or partial(log.info, "%s")
    try:
        if reconciler := opened():
            release_now(reconciler, key, report=report, own=own, within=within)
    except GpuError as error:
        log.error(
            "Nodes of pool %s that no run wants could not be released now; the next reconcile of the pool releases"
            " them, at the latest after max_runtime: %s",
            key.pool,
            error,
        )


@dataclass(frozen=True, kw_only=True)
class _Staying:
    """A pod of the caller that holds its node, as text; `is_waited_for`: once it has ended, the node is released."""

    pod: Pod
    is_waited_for: bool
    words: str


def _staying(snapshot: PoolSnapshot, decision: Decision, own: Collection[str]) -> Iterator[_Staying]:
    """Yield the caller's pods that keep running, and the deleted ones that alone still hold a node."""
    mine = [pod for pod in snapshot.pods if pod.uid in own and pod.holds_node(snapshot.now)]
    without = decide(replace(snapshot, pods=tuple(pod for pod in snapshot.pods if pod not in mine)))
    released = {machine.id for machine in without.release} - {machine.id for machine in decision.release}
    going = {node.name for node in snapshot.nodes if node.machine in released or node.name in without.cordon}
    for pod in mine:
        if pod.deleting and pod.node in going:
            words = f"node {pod.node} is released when pod {pod}, which is deleted, has ended"
            yield _Staying(pod=pod, is_waited_for=True, words=words + _otherwise(snapshot, decision, pod))
        elif not pod.deleting and not pod.finished:
            words = f"pod {pod} keeps running, and node {pod.node} stays for it{_until(pod)}"
            words += f"; `kubectl -n {pod.namespace} delete pod {pod.name}` ends it"
            yield _Staying(pod=pod, is_waited_for=False, words=words + _otherwise(snapshot, decision, pod))


def _until(pod: Pod) -> str:
    if pod.active_deadline is None or pod.started_at is None:
        return ""
    return f", until {pod.started_at + pod.active_deadline:%Y-%m-%d %H:%M}Z at the latest"


def _otherwise(snapshot: PoolSnapshot, decision: Decision, pod: Pod) -> str:
    """Return what ends the pod's node when no process watches any more; empty if nothing has to."""
    machine = next((node.machine for node in snapshot.nodes if node.name == pod.node), "")
    group = next((each for each in snapshot.groups if any(m.id == machine for m in each.live)), None)
    if group is None or group.when_idle != "remove":
        return ""
    at = decision.switch.get(group.name) or group.switch_at
    if at is not None:
        return f"; the switch of {group.name} ends the node at {at:%Y-%m-%d %H:%M}Z at the latest"
    return "; then the next run that uses the pool, or `airflow gpu reap`, removes the node"
