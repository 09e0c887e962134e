"""The commands of `airflow gpu`. Each reads pools from Airflow's database, and Airflow's connections by their ids."""

from __future__ import annotations

import functools
import getpass
import os
import socket
from argparse import Namespace
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, time, timedelta
from pathlib import Path
from typing import TypeVar

from airflow.utils.cli import suppress_logs_and_warning
from sqlalchemy.exc import DatabaseError

from airflow_gpu_provider.cli.ensures import ensures_left_alone
from airflow_gpu_provider.cli.metadata import (
    NamedPool,
    pools_of_dags,
    pools_of_file,
    pools_with_code,
    recorded_bills,
    run_is_over_in_metadata,
    stale_dags,
)
from airflow_gpu_provider.cli.nights import blocks_of, has_checkpoint, xcoms_of
from airflow_gpu_provider.cli.tables import (
    Row,
    cost_row,
    few,
    finding_row,
    for_terminal,
    lease_rows,
    leftover_row,
    machine_rows,
    pool_row,
    print_rows,
    sums,
    tell,
)
from airflow_gpu_provider.cluster.api.clock import SystemClock
from airflow_gpu_provider.cluster.api.threads import in_parallel
from airflow_gpu_provider.errors import GpuError, PoolSpecError
from airflow_gpu_provider.money.budget import check_max_cost
from airflow_gpu_provider.money.planned_money import money_lines
from airflow_gpu_provider.money.prices import too_dear_lines
from airflow_gpu_provider.operators.ensure import USUAL_WAIT
from airflow_gpu_provider.pools import GpuPool
from airflow_gpu_provider.pools.values import time_of
from airflow_gpu_provider.reports.advice import BlockNights
from airflow_gpu_provider.reports.advice import advise as advice_of
from airflow_gpu_provider.reports.doctor import Finding, examine
from airflow_gpu_provider.reports.status import read_status
from airflow_gpu_provider.scaling.apply.reconcile import Reconciler, open_pool
from airflow_gpu_provider.scaling.decide.scarce_capacity import with_wait
from airflow_gpu_provider.scaling.end.extension import Allowance, amount, extend_demand, hours
from airflow_gpu_provider.scaling.end.janitor import reap_pools

_NO_POOLS = (
    "A DAG is in the database once the DAG processor has read its file: see `airflow dags list` and `airflow dags"
    " list-import-errors`. --spec takes pools from a file."
)

_LONGEST_AGO = timedelta(days=366)
"""How old a night may be to count; Airflow keeps its runs as long as it is told to."""

ANY_RUN = Allowance(most=timedelta(days=365))
"""What `airflow gpu extend` may give: who has a shell here has the connections and Airflow's database anyway."""

_FOUND = {
    "warning": "Worth a look",
    "unchecked": "Not checked, so it may stop a run all the same",
    "problem": "Would stop a run",
}
"""How the doctor's last lines begin, by the result of the checks that they name."""

Found = TypeVar("Found")


def _command(run: Callable[[Namespace], None]) -> Callable[[Namespace], None]:
    """Let a command find the database's connections, and end with a sentence instead of a traceback."""

    @functools.wraps(run)
    def command(args: Namespace) -> None:
        # Without it Airflow looks for connections as a task does, finds none, and AWS's hook takes what it can get.
        os.environ["_AIRFLOW_PROCESS_CONTEXT"] = "server"
        try:
            suppress_logs_and_warning(run)(args)
        except GpuError as error:
            raise SystemExit(for_terminal(f"{type(error).__name__}: {error}")) from error
        except KeyboardInterrupt:
            raise SystemExit(130) from None
        except DatabaseError as error:
            reason = str(error.orig or error)
            what = f"Airflow's metadata database cannot be read: {reason}. See `airflow db check`."
            raise SystemExit(for_terminal(what)) from error

    return command


@_command
def pools(args: Namespace) -> None:
    rows = [
        {
            "pool": each.name,
            "kind": each.spec.get("kind", ""),
            "cluster": each.pool.cluster_identity if each.pool else "",
            "max_nodes": each.spec.get("max_nodes"),
            "dags": each.dags,
            "problem": each.problem,
        }
        for each in _named(args)
    ]
    print_rows(rows, args.output, nothing=f"There is no pool in {_where(args)}. {_if_none(args)}")


@_command
def plan(args: Namespace) -> None:
    def rows_of(reconciler: Reconciler, account: str) -> list[Row]:
        pool = reconciler.pool
        nodes = pool.max_nodes if args.nodes is None else pool.nodes_for(gpus=None, nodes=args.nodes)
        found = with_wait(reconciler.platform.plan(nodes), USUAL_WAIT)
        money: Iterable[str] = ()
        if args.max_cost is not None:
            check_max_cost(pool, args.max_cost)
            money = money_lines(pool, args.max_cost, nodes, found.listed)
        return [
            *({"pool": pool.name, "action": c.action, "what": c.group, "detail": c.detail} for c in found.changes),
            *({"pool": pool.name, "action": "grow", "what": "", "detail": line} for line in found.grow),
            *({"pool": pool.name, "action": "price", "what": "", "detail": line} for line in found.prices),
            *({"pool": pool.name, "action": "money", "what": "", "detail": line} for line in money),
            *(
                {"pool": pool.name, "action": "note", "what": "", "detail": note}
                for note in (*found.brought, *too_dear_lines(found.too_dear), *found.notes)
            ),
        ]

    each_rows, failed = _of_each_pool(args, rows_of)
    nothing = f"No changes{' in the pools that answered' * bool(failed)}." if each_rows else ""
    print_rows([row for rows in each_rows for row in rows], args.output, nothing=nothing)
    _end(failed)


@_command
def status(args: Namespace) -> None:
    found, failed = _of_each_pool(args, read_status)
    if args.output in ("json", "yaml"):
        print_rows([each.to_json() for each in found], args.output)
    else:
        shown = found if args.pools or len(found) == 1 else [each for each in found if not each.is_empty]
        print_rows([pool_row(each) for each in shown], args.output, nothing="")
        if empty := [each.pool for each in found if each not in shown]:
            tell(f"No nodes, and no run that wants any: {few(empty)}.")
        gangs = [{"pool": row.pool, "gang": row.gang, "state": row.state} for each in found for row in each.gangs]
        for title, rows in (("Machines", machine_rows(found)), ("Demand", lease_rows(found)), ("Gangs", gangs)):
            if rows:
                print(f"\n{title}")
                print_rows(rows, args.output)
        for each in found:
            for line in (*each.hangs, *each.notes):
                tell(f"{each.pool}: {line}")
    _end(failed)


@_command
def doctor(args: Namespace) -> None:
    """Show what each check found.

    The exit status is 1 where something would stop a run, and with --strict 2 where nothing is known to and something
    could not be checked.
    """

    with_code = set() if args.spec else pools_with_code(args.dag_id)

    def ask(pool: GpuPool) -> tuple[Finding, ...]:
        connect = functools.partial(_open, pool)
        return examine(pool, connect, pod_namespace=args.pod_namespace, takes_code=pool.name in with_code)

    findings = [finding for found in in_parallel(ask, _pools(args)) for finding in found]
    findings += [] if args.spec else ensures_left_alone(args.dag_id, args.pools)
    for_people = args.output not in ("json", "yaml")
    print_rows([finding_row(each) if for_people else each.to_json() for each in findings], args.output, wraps=True)
    checks: dict[str, dict[str, None]] = {}
    for each in findings:
        checks.setdefault(each.result, {})[f"{each.pool}: {each.check}"] = None
    for result, words in _FOUND.items():
        if result in checks:
            tell(f"{words}: {', '.join(checks[result])}.")
    if "problem" in checks:
        raise SystemExit(1)
    if "unchecked" not in checks:
        tell("Nothing would stop a run, as far as can be seen beforehand.")
    elif args.strict:
        raise SystemExit(2)


@_command
def reap(args: Namespace) -> None:
    """List leftovers that no run wants; remove them with --yes, and exit with status 1 if any remain after that."""
    from airflow_gpu_provider.tasks.run_identity import known_installation_id

    reaped = reap_pools(
        _pools(args),
        _open,
        installation=known_installation_id(),
        run_is_over=run_is_over_in_metadata,
        dry_run=not args.yes,
        others=not args.pools,
        timeout=timedelta(seconds=args.timeout),
        report=tell,
    )
    if args.output in ("json", "yaml"):
        print_rows([each.to_json() for each in reaped], args.output)
    else:
        rows = [
            leftover_row(leftover, each.currency, each.price_source) for each in reaped for leftover in each.leftovers
        ]
        where = " in the pools that answered" if any(each.error for each in reaped) else ""
        nothing = "" if all(each.error for each in reaped) else f"Nothing is left over{where}."
        print_rows(rows, args.output, nothing=nothing)
    if not args.yes and any(each.leftovers for each in reaped):
        tell("Nothing was changed; --yes removes it.")
    elif args.yes and any(each.leftovers for each in reaped):
        left = [f"{leftover.name} ({each.pool})" for each in reaped for leftover in each.left]
        tell(f"Still present: {', '.join(left)}. Run the command again to continue." if left else "All of it is gone.")
    if any(each.error or (args.yes and each.left) for each in reaped):
        raise SystemExit(1)


@_command
def extend(args: Namespace) -> None:
    if not args.dag_id:
        raise PoolSpecError("--dag-id is missing.", "Name the run whose nodes are to stay: --dag-id and --run-id.")
    pool = _one_pool(args, "Name one of them.")
    extended = extend_demand(
        _open(pool),
        dag_id=args.dag_id,
        run_id=args.run_id,
        run_is_over=run_is_over_in_metadata,
        allowance=ANY_RUN,
        by=None if args.hours is None else hours(args.hours),
        max_cost=None if args.max_cost is None else amount(args.max_cost),
        reason=args.reason or "",
        block=args.block_id,
        pods_may_end=args.pods_may_end,
    )
    for line in dict.fromkeys(line for each in extended for line in each.log_lines):
        tell(line)
    rows = [{"pool": pool.name, "run": str(e.key), "before": f"{e.before}", "until": f"{e.until}"} for e in extended]
    print_rows(rows, args.output)


@_command
def cost(args: Namespace) -> None:
    """Add up the bills that Airflow keeps; they outlive the specs, so that a pool need not be found for it."""
    since = since_day(args.since, SystemClock().now())
    names = [each.name for each in _named(args)] if args.spec else args.pools
    rows = sums(recorded_bills(since, args.dag_id), names)
    shown = rows if args.output in ("json", "yaml") else [cost_row(row) for row in rows]
    of = "".join((f" of DAG {args.dag_id}" * bool(args.dag_id), f" of pool {', '.join(names)}" * bool(names)))
    print_rows(shown, args.output, nothing=f"No bill{of} is recorded since {since:%Y-%m-%d %H:%MZ}.")


@_command
def advise(args: Namespace) -> None:
    """Show what the nights of one DAG say; what the cloud is needed for is left out where it does not answer."""
    done_by, most = _time_of_day(args.done_by), args.nights
    if most < 1:
        raise PoolSpecError(f"--nights {most} is no number of nights.", "Give one of at least 1.")
    now = SystemClock().now()
    blocks = blocks_of(xcoms_of(args.dag_id, now - _LONGEST_AGO), most)
    checkpoint, pools = has_checkpoint(args.dag_id), {each.name: each for each in pools_of_dags(args.dag_id)}
    rows = [
        {"pool": each.pool, "block": each.block, "about": each.about, "advice": each.text}
        for block in blocks
        for each in advice_of(_with_prices(block, pools.get(block.pool)), done_by=done_by, has_checkpoint=checkpoint)
    ]
    print_rows(rows, args.output, nothing=f"No night of DAG {args.dag_id} is recorded.", wraps=True)


def _time_of_day(given: str) -> time:
    try:
        return time.fromisoformat(given)
    except ValueError as error:
        raise PoolSpecError(f"--done-by {given} is no time of day.", "Give one like 07:00.") from error


def _with_prices(block: BlockNights, named: NamedPool | None) -> BlockNights:
    """Return it with today's prices of the spec's candidates, or why they are not known."""
    if named is None or named.pool is None:
        return replace(block, unpriced=named.problem if named else "no DAG names its pool now")
    try:
        listed = _open(named.pool).platform.list_prices()
    except GpuError as error:
        return replace(block, unpriced=error.what.rstrip("."))
    if listed is None:
        return replace(block, unpriced='price_per_hour="list" compares them')
    reason = next(iter(listed.unknown.values()), "the cloud lists none")
    return replace(block, prices=dict(listed.per_hour), unpriced=reason)


@_command
def manifest(args: Namespace) -> None:
    """Print the text that InstallClusterAutoscalerOperator applies; nothing is changed."""
    from airflow_gpu_provider.addons.cluster_autoscaler import manifest_for

    pool = _one_pool(args, "Name one of the cluster.")
    print(manifest_for(pool, flags=args.flag, image=args.image, role_arn=args.role_arn), end="")


@_command
def accept(args: Namespace) -> None:
    """Try one pool on its account and write the report; the exit status is 1 where a step failed, 2 where none ran."""
    from airflow_gpu_provider.acceptance.command import accept_pool

    pools = _pools(args)
    if len(pools) > 1:
        names = ", ".join(pool.name for pool in pools)
        raise PoolSpecError(f"There are {len(pools)} pools in {_where(args)}: {names}.", "Name the one to be tried.")
    status = accept_pool(
        pools[0],
        image=args.image,
        price=args.price,
        night=timedelta(minutes=args.night_minutes),
        pod_namespace=args.pod_namespace,
        report=Path(args.report),
        may_cost=args.yes_it_costs,
        echo=tell,
    )
    if status:
        raise SystemExit(status)


def since_day(given: str | None, now: datetime) -> datetime:
    """Read `--since`: a day or a time in ISO 8601, in UTC where it has no zone; default: the first of this month."""
    if not given:
        return now.astimezone(UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    try:
        return time_of(given)
    except ValueError as error:
        raise PoolSpecError(f"--since {given} is not a day.", "Give one like 2026-03-01.") from error


# -- which pools ---------------------------------------------------------------------------------------------


def _named(args: Namespace) -> list[NamedPool]:
    found = pools_of_file(args.spec) if args.spec else pools_of_dags(args.dag_id)
    unknown = [name for name in args.pools if name not in {each.name for each in found}]
    if unknown:
        known = ", ".join(dict.fromkeys(each.name for each in found))
        fix = f"There {'is' if len(found) == 1 else 'are'} {known}." if found else _if_none(args)
        raise PoolSpecError(f"There is no pool {', '.join(unknown)} in {_where(args)}.", fix)
    return [each for each in found if not args.pools or each.name in args.pools]


def _where(args: Namespace) -> str:
    return args.spec or (f"DAG {args.dag_id}" if args.dag_id else "any DAG that Airflow has in its database")


def _if_none(args: Namespace) -> str:
    stale = stale_dags() if not (args.spec or args.dag_id) else []
    if not stale:
        return _NO_POOLS
    return (
        f"Airflow has not read the files of these DAGs lately, and schedules none of them: {', '.join(stale)}. See"
        " whether the DAG processor runs; --dag-id takes the pools of one all the same, --spec those of a file."
    )


def _one_pool(args: Namespace, advice: str) -> GpuPool:
    """Return the pool that is named, or the only one; PoolSpecError, with what to do, where there are several."""
    pools = _pools(args)
    if len(pools) > 1:
        raise PoolSpecError(f"There are {len(pools)} pools in {_where(args)}.", advice)
    return pools[0]


def _pools(args: Namespace) -> list[GpuPool]:
    """Return the pools that the arguments choose, rendered; those that cannot be are reported and left out."""
    named = _named(args)
    if not named:
        raise PoolSpecError(f"There is no pool in {_where(args)}.", _if_none(args))
    unread = [each for each in named if each.error]
    if unread and (args.pools or len(unread) == len(named)):
        raise _unread(args, unread)
    for each in unread:
        tell(f"{each.name} of {', '.join(each.dags) or args.spec} is left out: {each.problem}")
    return list(dict.fromkeys(each.pool for each in named if each.pool is not None))


def _unread(args: Namespace, unread: Sequence[NamedPool]) -> PoolSpecError:
    otherwise = "Write plain values into the file." if args.spec else "Give its values with --spec."
    problems, fixes = [], []
    for each in unread:
        if each.error:
            why = each.error.what.removeprefix(f"Pool {each.name!r}: ").rstrip(".")
            problems.append(
                f"Pool {each.name or 'without a name'} of {args.spec or ', '.join(each.dags)} cannot be read: {why}."
            )
            fixes.append(each.error.fix or otherwise)
    return PoolSpecError(" ".join(problems), " ".join(dict.fromkeys(fixes)))


def _of_each_pool(args: Namespace, look: Callable[[Reconciler, str], Found]) -> tuple[list[Found], int]:
    """Return what each pool that the arguments choose is found to be, and how many of them could not be read.

    They are read in parallel, and reported in their order, the accounts first, each once. A pool that
    cannot be read does not keep the others from being shown. `look` is given a pool and its account.
    """

    def ask(pool: GpuPool) -> tuple[str, Found] | GpuError:
        try:
            reconciler = _open(pool)
            account = reconciler.platform.account()
            return account, look(reconciler, account)
        except GpuError as error:
            return error

    pools = _pools(args)
    found, accounts, errors = [], dict[str, list[str]](), []
    for pool, answer in zip(pools, in_parallel(ask, pools), strict=True):
        if isinstance(answer, GpuError):
            errors.append(f"{pool.name}: {type(answer).__name__}: {answer}")
            continue
        account, what = answer
        accounts.setdefault(account, []).append(pool.name)
        found.append(what)
    for account, names in accounts.items():
        tell(f"{few(names)}: {account}")
    for line in errors:
        tell(line)
    return found, len(errors)


def _end(failed: int) -> None:
    if failed:
        tell(f"{failed} pool{'s' * (failed != 1)} could not be read.")
        raise SystemExit(1)


def _open(pool: GpuPool) -> Reconciler:
    who = f"{getpass.getuser()}@{socket.gethostname()}:{os.getpid()}"
    return open_pool(pool, owner="", holder=f"airflow gpu, {who}", report=tell)
