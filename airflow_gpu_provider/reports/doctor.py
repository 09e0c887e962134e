"""What would stop tonight's run on a pool: everything is checked, and nothing is changed.

No writing call is tried. Instead it asks whether they are allowed: the API server for each verb, and by a dry run for
the pods' namespace; the cloud if it answers such questions. What nobody answered is a finding, too: "unchecked".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from functools import cached_property
from typing import Any, Literal

from airflow_gpu_provider.addons.detection import look, served_by
from airflow_gpu_provider.addons.device_plugin import CONTAINER, PLUGIN_NAMESPACE, plugin_labels
from airflow_gpu_provider.addons.plugin_watch import driver_fix, has_failed, plugin_state
from airflow_gpu_provider.clouds.backoff import passed_over
from airflow_gpu_provider.clouds.base import LaunchFailure
from airflow_gpu_provider.cluster.api.access_review import check_namespace
from airflow_gpu_provider.cluster.api.autoscaler import check_running
from airflow_gpu_provider.cluster.api.rest import ApiClient, label_selector, list_items
from airflow_gpu_provider.cluster.model.node import Node
from airflow_gpu_provider.cluster.model.pod_state import PodState
from airflow_gpu_provider.errors import (
    ClusterUnreachable,
    ConnectionNotFound,
    CredentialsError,
    GpuError,
    NamespaceTerminating,
    PermissionDenied,
    PriceLimitExceeded,
    QuotaExceeded,
    ReferenceNotFound,
)
from airflow_gpu_provider.money.prices import money, too_dear_lines
from airflow_gpu_provider.pools import GpuPool
from airflow_gpu_provider.reports.cluster_permissions import Rule, missing, rules, to_install_a_plugin
from airflow_gpu_provider.reports.kueue_queues import KueueQueues
from airflow_gpu_provider.reports.status import slow_pulls
from airflow_gpu_provider.scaling.apply.reconcile import Reconciler
from airflow_gpu_provider.scaling.decide.placement import check_group_claims
from airflow_gpu_provider.scaling.decide.shortage import WITHOUT_AUTOSCALER, how_to_launch
from airflow_gpu_provider.scaling.decide.snapshot import READY_WITHIN, PoolSnapshot, plural
from airflow_gpu_provider.times import format_seconds

LATELY = timedelta(days=1)
"""How far back failed launches are reported."""

_TYPED = "Give price_per_hour as numbers, if the limits on prices have to hold."

_WITHOUT_QUOTAS = "Let the connection read them (docs/iam.md, docs/iam-gke.md), or compare them in the cloud's console."

Result = Literal["ok", "unchecked", "warning", "problem"]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What one check found: `message`, as text, and `fix`, what to do about it.

    Whether a check that is "unchecked" would stop a run is unknown: `message` has the reason.
    """

    pool: str
    check: str
    result: Result
    message: str
    fix: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return it as it is left in XCom."""
        return asdict(self)


def examine(
    pool: GpuPool, connect: Callable[[], Reconciler], *, pod_namespace: str = "default", takes_code: bool = False
) -> tuple[Finding, ...]:
    """Return what each check found, the credentials first; if those or the cluster fail, the other checks are skipped.

    Args:
        connect: Connects to the pool, which is rendered, as `open_pool` does.
        pod_namespace: Where its pods run.
        takes_code: Some of its tasks have `code`.
    """
    try:
        reconciler = connect()
        where = reconciler.platform.account()
    except GpuError as error:
        no_credentials = isinstance(error, (ConnectionNotFound, CredentialsError))
        return (_problem(pool, "credentials" if no_credentials else "cluster", error),)
    findings = [Finding(pool=pool.name, check="credentials", result="ok", message=where)]
    for name, check in _Doctor(reconciler, pod_namespace, takes_code=takes_code).checks().items():
        try:
            for result, message, fix in check():
                findings.append(Finding(pool=pool.name, check=name, result=result, message=message, fix=fix))
        except (CredentialsError, ClusterUnreachable) as error:
            return (*findings, _problem(pool, name, error))
        except GpuError as error:
            findings.append(_unless_reported(_problem(pool, name, error), findings))
    return tuple(findings)


def _problem(pool: GpuPool, check: str, error: GpuError) -> Finding:
    return Finding(pool=pool.name, check=check, result="problem", message=error.what, fix=error.fix)


def _unless_reported(problem: Finding, before: Iterable[Finding]) -> Finding:
    first = next((each.check for each in before if each.message == problem.message), None)
    if not first:
        return problem
    return replace(problem, result="unchecked", message=f"could not be checked: see {first}", fix="")


Findings = Iterator[tuple[Result, str, str]]


class _Doctor:
    """The checks of one pool; each yields a result, what it found, and what to do."""

    def __init__(self, reconciler: Reconciler, pod_namespace: str, *, takes_code: bool = False) -> None:
        self._on = reconciler
        self._pool = reconciler.pool
        self._namespace = pod_namespace
        self._takes_code = takes_code
        self._has_quota = False
        self._provisioner = reconciler.pool.provisioner

    def checks(self) -> dict[str, Callable[[], Findings]]:
        """Return them by name, in the order in which a run would meet them."""
        found: dict[str, Callable[[], Findings]] = {
            "cluster": self._cluster,
            "permissions": self._permissions,
            "cloud permissions": self._cloud_permissions,
            "groups": self._groups,
            "quota": self._quota,
            "stock": self._stock,
            "device plugin": self._plugin,
            "driver": self._driver,
            "images": self._images,
        }
        if self._pool.has_list_prices or self._pool.max_price_per_hour is not None:
            found["prices"] = self._prices
        if self._provisioner:
            del found["quota"]  # the provisioner meets it, and tells of it
            if self._pool.has_karpenter:
                found["stock"] = self._launches
            else:
                del found["stock"]  # others tell their pods only
        if self._pool.provisioning_class:
            found["queues"] = self._queues
        if self._pool.needs_cluster_autoscaler:
            found["autoscaler"] = self._autoscaler
        return found

    @property
    def _seen(self) -> PoolSnapshot:
        if isinstance(self._look, GpuError):
            raise self._look
        return self._look

    @cached_property
    def _look(self) -> PoolSnapshot | GpuError:
        try:
            return self._on.snapshot()
        except GpuError as error:
            return error

    def _cluster(self) -> Findings:
        live = sum(lease.live(self._seen.now) for lease in self._seen.leases)
        yield "ok", f"reached; nodes of the pool: {len(self._seen.nodes)}, runs that want some: {live}", ""

    def _permissions(self) -> Findings:
        refused = missing(self._on.api, rules(self._pool, self._namespace, takes_code=self._takes_code))
        yield from map(_refusal, refused)
        try:
            check_namespace(self._on.api, self._namespace, creates_pods=False)
        except (ReferenceNotFound, NamespaceTerminating) as error:
            yield "problem", error.what, error.fix
            return
        if not refused:
            yield "ok", f"all that a run does in the cluster, with pods in namespace {self._namespace}", ""

    def _cloud_permissions(self) -> Findings:
        answer = self._on.platform.refusals()
        if answer is None:
            return
        for action in answer.refused:
            yield "problem", f"may not {action}", f"Allow it: {answer.fix}"
        if answer.unasked:
            yield "unchecked", f"the other checks try what only reads; {answer.unasked}", answer.fix
        elif not answer.refused:
            yield "ok", "all changes that a run makes in the cloud", ""
        try:
            self._on.platform.lives(self._seen.groups, self._seen.now)
        except PermissionDenied as error:
            yield "warning", f'bills will have "at least": {error.what}', error.fix

    def _groups(self) -> Findings:
        try:
            plan = self._on.platform.plan(1)
        except PriceLimitExceeded:
            yield "unchecked", "could not be checked: see prices", ""
            return
        for change in plan.changes:
            yield "ok", f"the next run will {change.action} {change.group}: {change.detail}", ""
        for line in plan.brought:
            yield "ok", line, ""
        where = "NodePool" if self._provisioner else "group"
        for note in plan.notes:
            yield "warning", note, f"Change the spec, or the {where} where it is defined."
        for unread in plan.unread:
            yield "unchecked", unread, "docs/iam.md has the whole policy."
        check_group_claims(self._seen)
        with_issue: dict[str, list[str]] = {}
        for group in self._seen.groups:
            for issue in () if self._provisioner else group.issues:  # a provisioner's are notes of the plan
                with_issue.setdefault(issue, []).append(group.name)
        for issue, names in with_issue.items():
            yield "warning", f"{', '.join(names)}: {issue}", "See the group in the cloud's console."
        if not (plan.changes or plan.brought or plan.notes):
            yield "ok", f"{plural(len(self._seen.groups), 'group')}, as the spec has them", ""

    def _quota(self) -> Findings:
        most, notes = self._pool.max_nodes, list[str]()
        try:
            over = self._on.platform.groups_over_quota(most, notes.append)
        except QuotaExceeded as error:
            there = sum(len(group.live) for group in self._seen.groups)
            self._on.platform.groups_over_quota(there + 1, notes.append)
            yield "warning", f"one more node fits, but max_nodes={most} nodes do not: {error.what}", error.fix
            return
        for note in notes:
            if over:
                yield "warning", note, "Request a higher quota, or name more machine types (docs/iam.md)."
            else:  # a line about no group: the quotas were not read
                yield "unchecked", note, _WITHOUT_QUOTAS
        if not notes:
            self._has_quota = True
            yield "ok", f"enough for max_nodes={most}", ""

    def _prices(self) -> Findings:
        listed, pool = self._on.platform.list_prices(), self._pool
        for why in dict.fromkeys(listed.unknown.values() if listed else ()):
            yield (
                "warning",
                f"what some nodes cost is not known: {why}",
                "docs/cost.md says what may have to be allowed.",
            )
        for line in too_dear_lines(self._on.platform.plan(1).too_dear):
            yield "warning", line, "Raise max_price_per_hour, if it is to be tried."
        if listed and listed.per_hour:
            cheapest, dearest = min(listed.per_hour.values()), max(listed.per_hour.values())
            cost = f"nodes cost {money(pool, cheapest)} to {money(pool, dearest)} an hour, disks and traffic aside"
            yield "ok", cost, ""
        if listed and listed.took:
            took, at_most = listed.took
            then = f"after {at_most:.0f} s prices are unknown, and no limit holds"
            yield (
                "warning" if took > at_most / 2 else "ok",
                f"the price list took {took:.1f} s to read; {then}",
                _TYPED if took > at_most / 2 else "",
            )

    def _stock(self) -> Findings:
        now = self._seen.now
        over = passed_over(self._seen.groups, now)
        quiet = True
        for group in self._seen.groups:
            # Launches refused by a quota that has room again stop nothing: they succeed when retried.
            is_over = self._has_quota and group.name not in over
            lately = [
                each for each in group.failures if now - each.at < LATELY and not (is_over and each.kind == "quota")
            ]
            if lately:
                quiet = False
                still = f"; not tried again until {over[group.name].until:%H:%M}Z" if group.name in over else ""
                message = _failed(str(group.candidate), lately, lately[-1].reason)
                yield "warning", message + still, "Name more zones, types or markets; see give_up_after= of Ensure."
        if quiet:
            yield "ok", "no launch failed in the last day", ""

    def _launches(self) -> Findings:
        quiet = True
        for group in self._seen.groups:
            if group.failures:
                quiet, last = False, group.failures[-1]
                yield (
                    "warning",
                    _failed(group.provisioner, group.failures, last.message),
                    how_to_launch(self._pool, last),
                )
        who = {group.name: group.provisioner for group in self._seen.groups}
        for each in self._seen.supply:
            if each.lacks_for_long(self._seen.now):
                quiet = False
                message = f"{each}: {who[each.machine.group]}: {each.machine.lacks}"
                yield "warning", message, "See `kubectl describe nodeclaim`."
        if quiet:
            yield "ok", "no launch has failed in the last hour, by the cluster's events", ""

    def _plugin(self) -> Findings:
        servers, is_installed = look(self._on.api, self._pool)
        server = served_by(self._pool, servers, ours=is_installed)
        if server:
            yield "ok", f"GPUs are handed out by {server}", ""
            return
        yield from map(_refusal, missing(self._on.api, to_install_a_plugin()))
        if is_installed:
            yield "ok", "this package's device plugin is installed", ""
        else:
            yield "ok", "not installed yet: InstallDevicePluginOperator of the block installs it", ""

    def _driver(self) -> Findings:
        blind = [node for node in self._seen.nodes if node.ready and not node.gpus]
        if not blind:
            yield "ok", _driver_words(self._pool, self._seen.nodes), ""
            return
        plugins = list_plugin_pods(self._on.api, self._pool)
        for node in blind:
            plugin = plugins.get(node.name)
            since = self._seen.now - (node.ready_changed_at or node.created_at)
            is_late = since > READY_WITHIN or (plugin is not None and has_failed(plugin))
            state = f"; {plugin_state(plugin)}" if plugin else ""
            message = f"node {node.name} has been Ready for {format_seconds(since)}, without an allocatable GPU{state}"
            logs = (
                f"kubectl -n {plugin.namespace} logs {plugin.name}" if plugin else f"kubectl describe node {node.name}"
            )
            yield "problem" if is_late else "warning", message, f"{driver_fix(node)} See `{logs}`."

    def _images(self) -> Findings:
        for message, fix in slow_pulls(self._on.api, self._pool, self._namespace):
            yield "warning", message, fix

    def _queues(self) -> Findings:
        yield from KueueQueues.read(self._on.api, self._namespace).examine(self._pool)

    def _autoscaler(self) -> Findings:
        status = check_running(self._on.api, self._pool.name, self._seen.now, or_else=WITHOUT_AUTOSCALER)
        names = [group.autoscaler_name for group in self._seen.groups if group.autoscaler_name]
        for name in names:
            if name in status.backoff:
                why = status.backoff[name]
                yield "warning", f"cluster-autoscaler backs off from {name}: {why}", "Name more zones or types."
            elif status.groups is not None and name not in status.groups:
                yield (
                    "warning",
                    f"cluster-autoscaler does not report {name} among its groups",
                    "It finds a new group after a minute. Otherwise check that its --node-group-auto-discovery names"
                    " tags that the group has.",
                )
        yield "ok", "cluster-autoscaler is alive", ""


def _failed(what: str, launches: Sequence[LaunchFailure], why: str) -> str:
    number = plural(len(launches), "launch", "launches")
    return f"{what}: {number} failed, last at {launches[-1].at:%H:%M}Z: {why}"


def _refusal(rule: Rule) -> tuple[Result, str, str]:
    fix = f"Grant it: docs/rbac/{rule.roles} has the roles."
    if rule.only_for:
        return "warning", f"may not {rule}: needed for {rule.only_for}", fix
    return "problem", f"may not {rule}", fix


def _driver_words(pool: GpuPool, nodes: Iterable[Node]) -> str:
    found = {node.image.driver for node in nodes if node.image.driver}
    if found:
        return f"existing nodes have it from {', '.join(sorted(found))}"
    return pool.nodes_to_come.driver


def list_plugin_pods(api: ApiClient, pool: GpuPool) -> dict[str, PodState]:
    """Return the plugin's pods by the node that they run on."""
    selector = label_selector(plugin_labels(pool))
    raw = list_items(api, f"/api/v1/namespaces/{PLUGIN_NAMESPACE}/pods", resource="pods", labelSelector=selector)
    states = (PodState.parse(each, CONTAINER) for each in raw)
    return {state.node: state for state in states if state.node}
