"""What EnsureGpuPoolOperator looks after besides nodes: its limits, and the namespaces and images of its trainings.

A namespace that is not there is told before a node costs anything. Images that nodes do not prefetch, trainings pull.
When it gives up, it withdraws its demand: as far as that is known when the DAG is parsed, it is refused or warned of.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import TaskDeferred

from airflow_gpu_provider.errors import GpuError, PoolSpecError
from airflow_gpu_provider.operators.node_counts import tasks_after
from airflow_gpu_provider.pools.budget import least, reserve
from airflow_gpu_provider.pools.prices import in_words, rate_in_words
from airflow_gpu_provider.pools.switch import unwatched_for
from airflow_gpu_provider.pools.values import is_dns_subdomain, is_template, is_whole
from airflow_gpu_provider.tasks.block_tasks import value_of
from airflow_gpu_provider.tasks.roles import role_of
from airflow_gpu_provider.tasks.xcom import push

if TYPE_CHECKING:
    from airflow.sdk import Context
    from kubernetes.client import ApiClient

    from airflow_gpu_provider.clouds.base import Plan, Report
    from airflow_gpu_provider.cluster.demand_key import DemandKey
    from airflow_gpu_provider.cluster.pod_state import Json
    from airflow_gpu_provider.operators.ensure import EnsureGpuPoolOperator
    from airflow_gpu_provider.pools import GpuPool
    from airflow_gpu_provider.pools.prices import ListPrices, TooDear
    from airflow_gpu_provider.scaling.apply.reconcile import Reconciler


def check_namespaces(ensure: Any, api: ApiClient, report: Report) -> None:
    """Check the namespaces that the DAG file gives to the tasks that are to run on Ensure's nodes.

    A task of the author's that comes before such a task may create its namespace: then what is missing is only said.

    Raises:
        ReferenceNotFound, NamespaceTerminating, PermissionDenied: See `check_namespace`.
    """
    from airflow_gpu_provider.cluster.access_review import check_namespace

    warned = set[str]()
    for task, namespace in _named(ensure):
        try:
            check_namespace(api, namespace, creates_pods=_creates_a_pod(task))
        except GpuError as error:
            if _is_first(task):
                raise
            if namespace not in warned:
                warned.add(namespace)
                report(f"task {task.task_id} is going to run in namespace {namespace}, and now could not: {error}")


def _named(ensure: Any) -> Iterator[tuple[Any, str]]:
    # In one order: the first that is not there is the error, in each try the same.
    trainings = (task for task in tasks_after(ensure) if role_of(task) == "training")
    for task in sorted(trainings, key=lambda task: str(task.task_id)):
        manifest = value_of(task, "manifest")
        meta = manifest.get("metadata") if isinstance(manifest, Mapping) else None
        given = value_of(task, "namespace") or (meta.get("namespace") if isinstance(meta, Mapping) else None)
        if isinstance(given, str) and not is_template(given):
            yield task, given


def _creates_a_pod(task: Any) -> bool:
    return value_of(task, "manifest") is None and value_of(task, "nodes") in (None, 1)


def _is_first(task: Any) -> bool:
    """Whether nothing of the author's comes before it."""
    return all(role_of(each) in ("ensure", "device_plugin") for each in task.upstream_list)


_EXAMPLES = {"prefetch": "registry.example.com/train:1", "prefetch_secrets": "regcred"}

# The grammar of github.com/distribution/reference: [host[:port]/]path[:tag][@digest].
_HOST = r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:]+\])(?::\d+)?"
_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_REFERENCE = re.compile(
    rf"(?:{_HOST}/)?{_PART}(?:/{_PART})*(?::\w[\w.-]{{0,127}})?(?:@[A-Za-z][\w+.-]*:[0-9A-Fa-f]{{32,}})?", re.ASCII
)
_NAMES: Mapping[str, Callable[[str], object]] = {"prefetch": _REFERENCE.fullmatch, "prefetch_secrets": is_dns_subdomain}


def check_names(**arguments: Any) -> None:
    """Raise PoolSpecError if one of the arguments is not a list of names: images' references, or Secrets' names."""
    for argument, names in arguments.items():
        like = f'like ["{_EXAMPLES[argument]}"]'
        if isinstance(names, list | tuple) and all(isinstance(each, str) and each for each in names):
            if wrong := [each for each in names if not is_template(each) and not _NAMES[argument](each)]:
                what = "image's reference" if argument == "prefetch" else "Secret's name"
                raise PoolSpecError(f"{argument} has {wrong[0]!r}, which is no {what}.", f"Write them {like}.")
        elif not is_template(names):
            raise PoolSpecError(f"{argument}={names!r}.", f"It is a list of names, {like}.")


def check_no_nodes(ensure: Any) -> None:
    """Refuse nodes=0 beside arguments that say something of nodes; raises PoolSpecError, as it does for no bool."""
    if not isinstance(ensure.keep, bool):
        name = getattr(ensure.gpu_pool, "name", None)
        of_pool = f" for pool {name}" if name else ""
        raise PoolSpecError(f"keep={ensure.keep!r}{of_pool}.", "It is True or False.")
    given = [name for name in ("keep", "max_cost", "prefetch") if getattr(ensure, name)]
    if is_whole(ensure.nodes) and int(ensure.nodes) == 0 and given:
        fix = f"Leave {given[0]} out, or want nodes."
        raise PoolSpecError(
            f"nodes=0 requests no node, and {given[0]}={getattr(ensure, given[0])!r} is for nodes.", fix
        )


def apply_plan(
    ensure: EnsureGpuPoolOperator, reconciler: Reconciler, plan: Plan, nodes: int, over_quota: Collection[str]
) -> None:
    """Bring the groups to the plan; if that fails midway, to a new plan from there."""
    plans, platform, report = [plan], reconciler.platform, ensure.log.info
    ensure._call_with_retries(
        lambda: platform.apply(plans.pop() if plans else platform.plan(nodes), report, over_quota)
    )
    if any(change.action == "upgrade" for change in plan.changes):
        ensure._call_with_retries(lambda: reconciler.upgrade(report))


def begin_prefetch(ensure: EnsureGpuPoolOperator, reconciler: Reconciler, key: DemandKey) -> None:
    """Have the nodes pull the images as they join, once their demand is written; it fails nothing."""
    from airflow_gpu_provider.addons.prefetch import prefetch

    if not ensure.prefetch:
        return
    try:
        check_names(prefetch=ensure.prefetch, prefetch_secrets=ensure.prefetch_secrets)  # as they are rendered
        prefetch(reconciler.api, ensure.gpu_pool, key, ensure.prefetch, ensure.prefetch_secrets)
    except GpuError as error:
        ensure.log.warning("No image is pulled before the trainings do so: %s", error)
    else:
        ensure.log.info("The nodes pull %s as soon as they join.", ", ".join(ensure.prefetch))


def prefetched(
    ensure: EnsureGpuPoolOperator,
    opened: Callable[[], Reconciler],
    result: Mapping[str, Any],
    context: Context,
) -> list[Json]:
    """Return the pulls that are over as phases of the timeline, which overlap the others; say which are not.

    Those that an earlier try has waited beside are not among them.
    """
    from airflow_gpu_provider.addons.prefetch import pulls
    from airflow_gpu_provider.tasks.run_identity import run_key

    if not ensure.prefetch:
        return []
    key = run_key(context, ensure.gpu_pool.name, ensure.block_id)
    try:
        phases, left = pulls(opened().api, key, [node["name"] for node in result["nodes"]])
    except GpuError as error:
        ensure.log.warning("How far the images are pulled is not known: %s", error)
        return []
    for image, why in left.items():
        if why:
            ensure.log.warning("The nodes cannot pull image %s for prefetch: %s", image, why)
        else:
            ensure.log.info("The nodes still pull image %s; the run goes on meanwhile.", image)
    since = min((each["at"] for each in result["timeline"]), default="")
    return [each for each in phases if each["at"] >= since]


_TOO_DEAR = "too_dear"


def check_give_up_after(give_up_after: timedelta, timeout: timedelta, pool: Any) -> None:
    """Refuse a `give_up_after` that is shorter than one attempt, and warn of one that allows no second one.

    Raises:
        PoolSpecError: It is shorter than `timeout`.
    """
    from airflow_gpu_provider.clouds.backoff import FIRST

    if give_up_after < timeout:
        raise PoolSpecError(
            f"give_up_after={give_up_after} is shorter than timeout={timeout}, one attempt's time.",
            "Raise give_up_after, or lower the timeout.",
        )
    if give_up_after <= FIRST and getattr(pool, "scaling", None) == "direct":
        warnings.warn(
            f"give_up_after={give_up_after} allows one try of each zone and type: one that has no"
            f" capacity is not tried again for {FIRST}. Raise give_up_after.",
            stacklevel=2,
        )


@contextmanager
def giving_up_on_failure(
    operator: EnsureGpuPoolOperator, opened: Callable[[], Reconciler], key: DemandKey, context: Context
) -> Iterator[None]:
    """Withdraw a run's demand when its task fails; a deferral is not a failure.

    An error of the withdrawal is only logged. The candidates that had no machine are pushed to XCom, for the web UI: a
    failed task returns nothing.
    """
    from airflow_gpu_provider.scaling.end.release_now import WHEN_KILLED, release_quietly

    try:
        yield
    except TaskDeferred:
        raise
    except BaseException as error:
        operator.log.info("Withdrawing this run's demand for nodes.")
        within = WHEN_KILLED if operator._stop.error is not None else None
        release_quietly(opened, key, log=operator.log, within=within)
        if isinstance(error, GpuError) and (tried := error.details.get("tried")):
            push(context, "tried", [*tried, *too_dear_of(operator, context)])
        raise


def push_too_dear(found: Sequence[TooDear], at: datetime, context: Context) -> None:
    """Push the candidates that are not tried for their price to XCom: the task may go on in another process."""
    from airflow_gpu_provider.scaling.decide.scarce_capacity import not_tried

    if found:
        push(context, _TOO_DEAR, [not_tried(each, at) for each in found])


def too_dear_of(operator: EnsureGpuPoolOperator, context: Context) -> list[Any]:
    """Return these candidates, as `tried` in a result has them."""
    if operator.gpu_pool.max_price_per_hour is None:
        return []
    return list(context["ti"].xcom_pull(task_ids=operator.task_id, key=_TOO_DEAR) or [])


def money_lines(pool: GpuPool, max_cost: float, nodes: int, listed: ListPrices | None) -> Iterator[str]:
    """Yield a line for each price, the dearest first, to which a run is held, and one for each that is unknown.

    Args:
        pool: The (rendered) pool.
        max_cost: What the run may cost; nothing of it is spent.
        nodes: How many nodes it wants.
        listed: What the cloud lists, if the pool goes by that.
    """
    from airflow_gpu_provider.scaling.wait.records import format_seconds

    limit, whose = pool.max_price_per_hour, dict[float, list[str]]()
    for name, price in _prices(pool, listed).items():
        if price is not None and (limit is None or price <= limit):
            whose.setdefault(price, []).append(name)
    for price in sorted(whose, reverse=True):
        per_hour, of = nodes * price, f" ({', '.join(whose[price])})" if any(whose[price]) else ""
        hours = (max_cost - reserve(pool, per_hour)) / per_hour if price else 0.0
        lasts = f"lasts {format_seconds(timedelta(hours=hours))}" if price else "is never used up"
        if max_cost < least(pool, per_hour):
            lasts = f"is not enough, which {least(pool, per_hour):g} is,"
        yield f"max_cost={max_cost:g} {lasts} for {rate_in_words(pool, nodes, per_hour)}{of}"
    if whose and (dearest := nodes * max(whose)):
        yield (
            f"of max_cost={max_cost:g}, {in_words(pool, reserve(pool, dearest))} are kept back: what the dearest"
            f" machines cost in {format_seconds(unwatched_for(pool))} after SIGTERM, until the cloud ends them"
            " while nobody looks"
        )
    for group, why in listed.unknown.items() if listed else ():
        yield f"max_cost={max_cost:g} cannot be held, as the price of {group} is not known: {why}"


def _prices(pool: GpuPool, listed: ListPrices | None) -> Mapping[str, float | None]:
    """Return what nodes cost, by group where the cloud lists it, else by market."""
    if listed is not None:
        return listed.per_hour
    return {market.lower().replace("_", "-"): price for market, price in pool.typed_prices.items()}
