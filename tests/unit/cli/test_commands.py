"""How the commands of `airflow gpu` ask several pools."""

from __future__ import annotations

import json
import threading
from argparse import Namespace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_gpu_provider import EksGpuPool
from airflow_gpu_provider.cli import commands
from airflow_gpu_provider.clouds.base import Plan
from airflow_gpu_provider.errors import ClusterUnreachable, PermissionDenied
from airflow_gpu_provider.reports.doctor import Finding
from airflow_gpu_provider.scaling.decide.snapshot import PoolSnapshot
from tests.unit.cli.test_costs import bill
from tests.unit.scaling.model.night import Night
from tests.unit.scaling.pools import lease, pool, snapshot
from tests.unit.training.test_pod_placement import a_pool

NAMES = ("first", "away", "last")


def test_pools_are_asked_at_the_same_time_and_told_in_their_order(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    all_are_asked = threading.Barrier(len(NAMES))

    def opened(pool: Any) -> Any:
        all_are_asked.wait(60)
        if pool.name == "away":
            raise ClusterUnreachable("It does not answer.")
        return SimpleNamespace(platform=SimpleNamespace(account=lambda: f"account of {pool.name}"), pool=pool)

    monkeypatch.setattr(commands, "_pools", lambda args: [a_pool(name=name) for name in NAMES])
    monkeypatch.setattr(commands, "_open", opened)
    found, failed = commands._of_each_pool(Namespace(), lambda on, account: f"{on.pool.name} in {account}")
    assert (found, failed) == (["first in account of first", "last in account of last"], 1)
    assert capsys.readouterr().err.splitlines() == [
        "first: account of first",
        "last: account of last",
        "away: ClusterUnreachable: It does not answer.",
    ]


def test_each_account_is_told_once_and_pools_without_anything_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def opened(pool: EksGpuPool) -> Any:
        platform = SimpleNamespace(account=lambda: "AWS account 1" if pool.name < "pool-30" else "AWS account 2")
        return SimpleNamespace(platform=platform, pool=pool, api=None, snapshot=lambda: seen(pool))

    def seen(pool: EksGpuPool) -> PoolSnapshot:
        return snapshot(leases=(lease("nightly"),), spec=pool) if pool.name == "pool-07" else snapshot(spec=pool)

    pools = [pool(name=f"pool-{number:02}") for number in range(32)]
    monkeypatch.setattr(commands, "_pools", lambda args: pools)
    monkeypatch.setattr(commands, "_open", opened)
    monkeypatch.setenv("_AIRFLOW_PROCESS_CONTEXT", "server")
    commands.status(Namespace(output="plain", pools=[], verbose=True))
    said = capsys.readouterr()
    assert said.err.splitlines() == [
        "pool-00, pool-01, pool-02, pool-03, pool-04 and 25 more pools: AWS account 1",
        "pool-30, pool-31: AWS account 2",
        "No nodes, and no run that wants any: pool-00, pool-01, pool-02, pool-03, pool-04 and 26 more pools.",
    ]
    assert "pool-07" in said.out
    assert "pool-08" not in said.out


def test_the_doctor_examines_pools_at_the_same_time_and_tells_them_in_their_order(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    all_are_asked = threading.Barrier(len(NAMES))

    def opened(pool: Any) -> Any:
        all_are_asked.wait(60)
        raise (ClusterUnreachable if pool.name == "away" else PermissionDenied)(f"{pool.name} says no.")

    monkeypatch.setattr(commands, "_pools", lambda args: [a_pool(name=name) for name in NAMES])
    monkeypatch.setattr(commands, "_open", opened)
    monkeypatch.setenv("_AIRFLOW_PROCESS_CONTEXT", "server")
    with pytest.raises(SystemExit):
        commands.doctor(Namespace(output="json", pod_namespace="default", verbose=True, spec="pools.json"))
    assert [each["message"] for each in json.loads(capsys.readouterr().out)] == [f"{name} says no." for name in NAMES]


@pytest.mark.parametrize(
    ("results", "strict", "status", "said"),
    [
        (["ok"], True, None, ["Nothing would stop a run, as far as can be seen beforehand."]),
        (["ok", "unchecked"], False, None, ["Not checked, so it may stop a run all the same: train: quota."]),
        (["ok", "unchecked"], True, 2, ["Not checked, so it may stop a run all the same: train: quota."]),
        (
            ["problem", "warning", "unchecked"],
            True,
            1,
            [
                "Worth a look: train: quota.",
                "Not checked, so it may stop a run all the same: train: quota.",
                "Would stop a run: train: quota.",
            ],
        ),
    ],
)
def test_the_doctor_calls_nothing_well_that_it_could_not_check(
    results: list[Any],
    strict: bool,
    status: int | None,
    said: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = tuple(Finding(pool="train", check="quota", result=each, message="?") for each in results)
    monkeypatch.setattr(commands, "_pools", lambda args: [a_pool(name="train")])
    monkeypatch.setattr(commands, "examine", lambda *args, **kwargs: found)
    monkeypatch.setenv("_AIRFLOW_PROCESS_CONTEXT", "server")
    args = Namespace(output="json", pod_namespace="default", verbose=True, spec="pools.json", strict=strict)
    if status:
        with pytest.raises(SystemExit) as ended:
            commands.doctor(args)
        assert ended.value.code == status
    else:
        commands.doctor(args)
    assert capsys.readouterr().err.splitlines() == said


@pytest.mark.parametrize("command", [commands.status, commands.plan])
def test_where_no_pool_can_be_read_nothing_is_said_of_what_there_is(
    command: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nor with --output json, where the list is empty and the exit status is 1."""
    refuse_all(monkeypatch)
    for output in ("table", "json"):
        with pytest.raises(SystemExit) as ended:
            command(Namespace(output=output, nodes=None, pools=[], verbose=True))
        assert ended.value.code == 1
        said = capsys.readouterr()
        assert said.out == ("" if output == "table" else "[]\n")
        assert said.err.splitlines() == [
            *(f"{name}: PermissionDenied: It may not." for name in NAMES),
            "3 pools could not be read.",
        ]


def test_reap_calls_nothing_clean_that_it_could_not_look_at(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    refuse_all(monkeypatch)
    monkeypatch.setenv("AIRFLOW__GPU_PROVIDER__INSTALLATION_ID", "tests")
    with pytest.raises(SystemExit):
        commands.reap(Namespace(output="table", yes=False, pools=[], timeout=1, verbose=True))
    assert capsys.readouterr().err.splitlines() == [f"pool {name}: PermissionDenied: It may not." for name in NAMES]


@pytest.mark.parametrize(
    ("nodes", "said"), [(0, "0 nodes are wanted. Want at least one."), (9, "9 nodes are wanted, but max_nodes is 2.")]
)
def test_a_plan_for_more_nodes_than_the_pool_may_have_is_refused(
    nodes: int, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("_AIRFLOW_PROCESS_CONTEXT", "server")
    monkeypatch.setattr(commands, "_pools", lambda args: [pool(name="train", max_nodes=2)])
    opened = SimpleNamespace(
        platform=SimpleNamespace(account=lambda: "account 1"), pool=pool(name="train", max_nodes=2)
    )
    monkeypatch.setattr(commands, "_open", lambda pool: opened)
    with pytest.raises(SystemExit):
        commands.plan(Namespace(output="table", nodes=nodes, pools=[], verbose=True))
    assert f"train: PoolSpecError: Pool train: {said}" in capsys.readouterr().err


def test_a_plan_says_how_long_money_lasts_and_refuses_what_cannot_be_held(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("_AIRFLOW_PROCESS_CONTEXT", "server")
    pools = [pool(name="train", max_nodes=2, price_per_hour=2.0), pool(name="free", max_nodes=2, price_per_hour=None)]
    monkeypatch.setattr(commands, "_pools", lambda args: pools)
    platform = SimpleNamespace(
        account=lambda: "account 1", plan=lambda nodes: Plan(pool="train"), list_prices=lambda: None
    )
    monkeypatch.setattr(commands, "_open", lambda pool: SimpleNamespace(platform=platform, pool=pool))
    with pytest.raises(SystemExit):
        commands.plan(Namespace(output="json", nodes=None, max_cost=10.0, pools=[], verbose=True))
    printed = capsys.readouterr()
    line = "max_cost=10 lasts 2 h 5 min for 2 nodes at 4.00 USD an hour in all (on-demand)"
    lasts, kept_back = json.loads(printed.out)
    assert lasts == {"pool": "train", "action": "money", "what": "", "detail": line}
    assert kept_back["detail"].startswith("of max_cost=10, 1.67 USD are kept back")
    assert "free: PoolSpecError: Pool free: max_cost=10 needs the price of each kind of node" in printed.err


def test_costs_are_those_of_the_pools_in_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "pool.json"
    path.write_text(json.dumps(GOOD))
    monkeypatch.setattr(commands, "recorded_bills", lambda since, dag_id: [bill(), bill(pool="other")])
    given = {"since": "2026-03-01", "dag_id": None, "verbose": True}
    commands.cost(Namespace(**given, output="json", pools=[], spec=str(path)))
    assert [row["pool"] for row in json.loads(capsys.readouterr().out)] == ["train"]
    commands.cost(Namespace(**given, output="json", pools=[], spec=None))
    assert [row["pool"] for row in json.loads(capsys.readouterr().out)] == ["other", "train"]
    commands.cost(Namespace(**{**given, "dag_id": "nightly"}, output="table", pools=["gone", "lost"], spec=None))
    nothing = "No bill of DAG nightly of pool gone, lost is recorded since 2026-03-01 00:00Z."
    assert nothing in "".join(capsys.readouterr())


def refuse_all(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(pool: Any) -> Any:
        raise PermissionDenied("It may not.")

    monkeypatch.setenv("_AIRFLOW_PROCESS_CONTEXT", "server")
    monkeypatch.setattr(commands, "_pools", lambda args: [a_pool(name=name) for name in NAMES])
    monkeypatch.setattr(commands, "_open", refuses)


def test_extend_gives_a_run_more_money(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    night = Night(price_per_hour=2.0)
    (before,) = night.ask(
        night.lead, night.key("one"), 1, night.world.now + timedelta(hours=6), max_cost=4.0
    ).snapshot.leases
    monkeypatch.setattr(commands, "_pools", lambda args: [night.pool])
    monkeypatch.setattr(commands, "_open", lambda pool: night.lead)
    monkeypatch.setattr(commands, "run_is_over_in_metadata", lambda key: False)
    monkeypatch.setenv("_AIRFLOW_PROCESS_CONTEXT", "server")
    asked = {
        "dag_id": "dag",
        "run_id": "one",
        "block_id": None,
        "hours": None,
        "max_cost": 8.0,
        "reason": "nearly there",
        "pods_may_end": False,
    }
    commands.extend(Namespace(**asked, output="json", verbose=True))
    (told,) = json.loads(capsys.readouterr().out)
    (after,) = night.lead.snapshot().leases
    assert (told["before"], told["until"]) == (str(before.until), str(after.until))
    assert after.until > before.until


def test_accept_says_the_bound_and_stops_unless_it_may_cost(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    from airflow.cli.cli_parser import get_parser

    from airflow_gpu_provider.acceptance import command
    from airflow_gpu_provider.clouds.base import Plan

    pool = EksGpuPool(
        name="train",
        cluster_name="c",
        region="us-west-2",
        instance_types=["g6.xlarge"],
        max_nodes=9,
        zones=["us-west-2a"],
        currency="EUR",
    )
    spec = tmp_path / "pool.json"
    spec.write_text(json.dumps(pool.serialize()))
    planned = lambda each: SimpleNamespace(plan=lambda nodes: Plan(pool=each.name))  # noqa: E731
    monkeypatch.setattr(command, "platform_for", planned)
    given = ["gpu", "accept", "--spec", str(spec), "--image", "cuda:12", "--price", "2", "--night-minutes", "25"]
    arguments = get_parser().parse_args(given)
    with pytest.raises(SystemExit) as ended:
        arguments.func(arguments)
    assert ended.value.code == command.NOT_RUN
    said = capsys.readouterr().err.splitlines()
    assert said[0].startswith("At most 6.00 EUR: 3 nights of one node, each 60 minutes in the worst case")
    assert said[1:] == [
        "Plan for accept-train: no changes.",
        "Plan for fallback-train: no changes.",
        "Nothing was changed; --yes-it-costs does it.",
    ]


GOOD = {"kind": "eks", "name": "train", "cluster_name": "ml", "region": "us-west-2", "instance_types": ["g6.xlarge"]}
GOOD |= {"max_nodes": 1, "price_per_hour": 2.0}


@pytest.mark.parametrize(
    ("changes", "what", "fix"),
    [
        ({"instnce_types": []}, "EksGpuPool has no field instnce_types.", "Write instance_types for instnce_types."),
        ({"GPU": 1}, "EksGpuPool has no field GPU.", "Leave GPU out."),
        ({"max_nodes": None}, "max_nodes of EksGpuPool is not given.", "Add it to the spec."),
        ({"name": None}, "name of EksGpuPool is not given.", "Add it to the spec."),
        ({"max_nodes": 0}, "max_nodes=0 must be at least 1.", "Correct the pool's spec."),
        ({"price_per_hour": "two"}, "price_per_hour='two' is not a number.", "Give a price"),
        ({"price_per_hour": {"SPOT": "two"}}, "price_per_hour='two' is not a number.", "Give a price"),
        ({"taints": 5}, "taints=5 must be a list of strings", 'Write it as ["...", "..."]'),
        (
            {"kind": "aks"},
            "Unknown kind of pool: 'aks'.",
            "Give one of eks, gke, kubernetes as its kind, or install",
        ),
        ({"cluster_name": "{{ ds }}"}, "only a DAG run can render it", "Write plain values into the file."),
        ({"manage": "scale"}, 'manage="scale" needs groups to scale.', "Name them in node_groups or asg_names."),
        (
            {"manage": "scale", "node_groups": ["a"], "instance_types": None},
            "Pool train has external groups (manage='scale')",
            "Name instance_types in place of the groups",
        ),
        ({"price_per_hour": None}, "Pool train: the spec has no price per hour", "Set --price, or price_per_hour"),
    ],
)
def test_a_spec_that_cannot_be_accepted_is_told_with_what_to_do(
    changes: dict[str, Any], what: str, fix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = {key: value for key, value in {**GOOD, **changes}.items() if value is not None}
    said = ended_by_accepting(tmp_path, json.dumps(spec))
    assert f" {what}" in said
    assert f" {fix}" in said
    assert "left out" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "what", "fix"),
    [
        ('{"kind": "eks",', "is neither JSON nor YAML: line 1, column 16: ", "Correct the file, or name another in"),
        ("[]", "holds no pool's spec.", "Write what GpuPool.serialize() returns"),
        (None, "cannot be read: No such file or directory.", "Name a JSON or YAML file in --spec."),
        (
            json.dumps([GOOD, {**GOOD, "name": "more"}]),
            "There are 2 pools in",
            "train, more. Name the one to be tried.",
        ),
    ],
)
def test_a_file_that_holds_no_spec_is_told_in_a_line(text: str | None, what: str, fix: str, tmp_path: Path) -> None:
    said = ended_by_accepting(tmp_path, text)
    assert what in said
    assert fix in said
    assert len(said.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "what", "fix"),
    [
        ({"night_minutes": 0.0}, "A night of 0 minutes is not possible.", "Set --night-minutes above zero."),
        (
            {"price": -1.0},
            "A node does not cost -1 USD an hour: what the acceptance costs has no bound.",
            "Give --price as a number above zero.",
        ),
        (
            {"price": float("nan")},
            "A node does not cost nan USD an hour: what the acceptance costs has no bound.",
            "Give --price as a number above zero.",
        ),
        ({"report": "no-folder/report.md"}, "The report cannot be written to no-folder/report.md.", "Name a file in"),
        ({"report": "/"}, "The report cannot be written to /.", "Name a file in"),
    ],
)
def test_an_argument_that_cannot_work_is_refused_before_it_costs(
    arguments: dict[str, Any], what: str, fix: str, tmp_path: Path
) -> None:
    said = ended_by_accepting(tmp_path, json.dumps(GOOD), **arguments, yes_it_costs=True)
    assert f" {what} {fix}" in said


def ended_by_accepting(folder: Path, text: str | None, **arguments: Any) -> str:
    path = folder / "pool.json"
    if text is not None:
        path.write_text(text)
    usual = {"image": "i", "price": None, "night_minutes": 45, "pod_namespace": "ml", "report": str(folder / "r.md")}
    usual |= {"spec": str(path), "dag_id": None, "pools": [], "yes_it_costs": False, "verbose": True}
    with pytest.raises(SystemExit) as ended:
        commands.accept(Namespace(**{**usual, **arguments}))
    return str(ended.value.code)
