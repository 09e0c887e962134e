"""What every wait promises, be it for a pod, for a gang or for a workload."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from unittest.mock import Mock

import pytest

from airflow_gpu_provider.clouds.kubernetes.kubernetes_connection import access_from_connection
from airflow_gpu_provider.errors import EndUnknown, PodDeadline, PodPreempted
from airflow_gpu_provider.training.wait.end import RAISE_DEADLINE
from airflow_gpu_provider.training.watch import watch_loop as watch
from tests.fakes.clock import START
from tests.unit.clouds.kubernetes.test_kubernetes_connection import kubeconfig
from tests.unit.training import waiting_kinds
from tests.unit.training.waiting_kinds import GANG, POD, WORKLOAD, Kind, Night, run


@pytest.fixture(params=[POD, GANG, WORKLOAD], ids=str)
def kind(request: pytest.FixtureRequest) -> Kind:
    one: Kind = request.param
    return one


async def under_way(night: Night) -> None:
    night.start()
    night.watch()
    await night.says(night.kind.runs)


@pytest.mark.parametrize("of", ["object", "pod", "node"])
def test_a_label_that_somebody_takes_off_ends_nothing(kind: Kind, of: str) -> None:
    async def what(night: Night) -> None:
        await under_way(night)
        night.take_label({"object": kind.object, "pod": kind.pods[0], "node": "api/v1/nodes/n0"}[of])
        await night.says("node n0 has lost a label of its pool" if of == "node" else "has lost its label")
        await night.goes_on()
        night.end()
        progress = await night.over()
        assert (progress.done, progress.error) == (True, None)

    run(kind, what)


def test_what_lost_its_label_and_is_deleted_then_is_gone(kind: Kind) -> None:
    async def what(night: Night) -> None:
        await under_way(night)
        for path in kind.labels:
            night.take_label(path)
        await night.says("has lost its label")
        night.delete()
        assert isinstance((await night.over()).error, EndUnknown), "nobody saw it go"

    run(kind, what)


def test_a_lost_node_is_a_preemption(kind: Kind) -> None:
    async def what(night: Night) -> None:
        await under_way(night)
        night.lose_node()
        error = (await night.over()).error
        assert isinstance(error, PodPreempted), error
        assert error.details["pod"] == kind.pods[0].rpartition("/")[2]

    run(kind, what)


def test_what_its_pods_did_is_recorded_when_one_is_lost(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody finds them later: the lost one's node took it along, and its controller deletes the others."""
    recorded = list[str]()
    monkeypatch.setattr(
        watch, "record_pods", lambda _, pods, *__, **___: recorded.extend(each["metadata"]["name"] for each in pods)
    )
    monkeypatch.setattr(waiting_kinds, "nowhere", Mock())

    async def what(night: Night) -> None:
        await under_way(night)
        night.lose_node()
        await night.over()

    run(kind, what)
    assert sorted(recorded) == sorted(path.rpartition("/")[2] for path in kind.pods)


def test_a_full_pool_is_waited_for_and_its_time_is_not_counted(kind: Kind) -> None:
    async def what(night: Night) -> None:
        night.queue()
        night.watch()
        await night.says(kind.queues)
        night.clock.sleep(kind.wait.schedule_seconds * 3)
        await night.goes_on()
        night.start()
        await night.says(kind.runs)
        night.end()
        assert (await night.over()).done

    run(kind, what)


def test_a_pool_that_is_not_full_is_waited_for_no_longer_than_that(kind: Kind) -> None:
    async def what(night: Night) -> None:
        night.server.remove("api/v1/nodes/n0")
        night.queue()
        night.watch()
        error = (await night.over()).error
        assert isinstance(error, PodDeadline), error
        assert START + timedelta(seconds=kind.wait.schedule_seconds) <= night.clock.now() < kind.wait.deadline

    run(kind, what)


def test_watches_that_are_refused_meanwhile_end_nothing_that_may_be_read(kind: Kind) -> None:
    async def what(night: Night) -> None:
        await under_way(night)
        night.server.refuse("watch")
        night.server.refuse("list")
        night.server.break_watches()
        await night.says("denies permission to watch")
        await night.goes_on()
        night.end()
        progress = await night.over()
        assert (progress.done, progress.error) == (True, None)

    run(kind, what)


def test_the_deadline_ends_it_and_names_it(kind: Kind) -> None:
    async def what(night: Night) -> None:
        await under_way(night)
        night.clock.sleep((kind.wait.deadline - night.clock.now()).total_seconds())
        error = (await night.over()).error
        assert isinstance(error, PodDeadline), error
        assert error.fix == RAISE_DEADLINE
        assert error.details == kind.details == kind.wait.named

    run(kind, what)


def test_a_triggerer_that_starts_again_takes_the_wait_up_where_it_is(kind: Kind) -> None:
    async def what(night: Night) -> None:
        await under_way(night)
        await night.stop()
        night.watch()
        await night.goes_on()
        await night.stop()
        night.end()
        night.watch()
        assert (await night.over()).done

    run(kind, what)


def test_a_label_that_was_taken_off_while_no_triggerer_ran_ends_nothing(kind: Kind) -> None:
    async def what(night: Night) -> None:
        night.start()
        night.take_label(kind.object)
        night.watch()
        await night.says("has lost its label")
        await night.goes_on()
        night.end()
        assert (await night.over()).done

    run(kind, what)


def test_what_was_deleted_while_no_triggerer_ran_has_an_unknown_end(kind: Kind) -> None:
    async def what(night: Night) -> None:
        await under_way(night)
        await night.stop()
        night.delete()
        night.watch()
        error = (await night.over()).error
        assert isinstance(error, EndUnknown), error
        assert error.details == kind.details

    run(kind, what)


@pytest.mark.parametrize("is_late", [False, True], ids=["the connection has the new key", "it gets it later"])
def test_a_key_that_is_rotated_ends_nothing(kind: Kind, is_late: bool) -> None:
    async def what(night: Night) -> None:
        night.key = night.server.token = "old"
        await under_way(night)
        night.server.token = "new"
        night.key = "old" if is_late else "new"
        night.server.break_watches()
        if is_late:
            await night.says("CredentialsError")
        await night.goes_on()
        night.key = "new"
        night.end()
        progress = await night.over()
        assert (progress.done, progress.error) == (True, None)
        assert is_late == any("CredentialsError" in line for line in night.lines)

    run(kind, what)


@pytest.mark.parametrize("is_late", [False, True], ids=["before the old one expires", "after that"])
@pytest.mark.parametrize("user", [{"tokenFile": "token"}, {"token": "{token}"}], ids=["tokenFile", "login"])
def test_a_kubeconfig_whose_token_is_renewed_ends_nothing(
    kind: Kind, user: dict[str, str], is_late: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("airflow_gpu_provider.clouds.from_connection.AGAIN_AFTER", 0.0)
    extra = {"kube_config_path": str(tmp_path / "config")}
    monkeypatch.setenv("AIRFLOW_CONN_LAB", json.dumps({"conn_type": "kubernetes", "extra": extra}))

    def renew(token: str) -> None:
        (tmp_path / "token").write_text(token)
        shown = {field: value.format(token=token) for field, value in user.items()}
        (tmp_path / "config").write_text(json.dumps(kubeconfig(shown)))

    async def what(night: Night) -> None:
        renew("old")
        night.server.token, night.access = "old", lambda: access_from_connection("lab", None)
        await under_way(night)
        if not is_late:
            renew("new")
        night.server.token = "new"
        night.server.break_watches()
        if is_late:
            await night.says("CredentialsError")
            renew("new")
        await night.goes_on()
        night.end()
        progress = await night.over()
        assert (progress.done, progress.error) == (True, None)
        assert is_late == any("CredentialsError" in line for line in night.lines)

    run(kind, what)
