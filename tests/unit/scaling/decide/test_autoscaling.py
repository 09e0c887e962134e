"""Pools whose nodes an autoscaler adds: what is decided, what waits say."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

from airflow_gpu_provider.cluster.model.autoscaler_status import FRESH, AutoscalerStatus
from airflow_gpu_provider.errors import GroupFailed, OutOfStock
from airflow_gpu_provider.scaling.decide.decisions import decide
from airflow_gpu_provider.scaling.decide.shortage import reported_by_autoscaler
from airflow_gpu_provider.scaling.decide.snapshot import PoolSnapshot
from airflow_gpu_provider.scaling.wait.nodes_wait import NodesWait
from airflow_gpu_provider.scaling.wait.release_wait import ReleaseWait
from tests.unit.scaling.pools import EARLIER, LATER, NOW, SWITCH, A, B, dry, key, lease, machine, node, pod, pool
from tests.unit.scaling.pools import snapshot as take

AUTOSCALED = pool(scaling="autoscaler")


def snapshot(*machines: Any, **fields: Any) -> PoolSnapshot:
    return take(*machines, **{"spec": AUTOSCALED, **fields})


class TestSizes:
    def test_are_left_to_the_autoscaler(self) -> None:
        decision = decide(snapshot(leases=(lease(nodes=2),), train_a_g6_xlarge={"desired": 1}))
        assert (decision.grow, decision.shrink) == ({}, ())

    def test_what_nobody_wants_goes_at_once(self) -> None:
        assert decide(snapshot(machine(1))).release == (machine(1),)

    def test_what_a_pod_is_on_stays(self) -> None:
        assert decide(snapshot(machine(1), pods=(pod("train", 1, "run"),))).release == ()

    def test_a_node_that_it_brought_for_a_pod_stays_for_that_pod(self) -> None:
        running, waiting = pod("one", 1, "run"), pod("two", None, "run")
        assert decide(snapshot(machine(1), machine(2), leases=(lease(),), pods=(running, waiting))).release == ()
        (gone,) = decide(snapshot(machine(1), machine(2), leases=(lease(),), pods=(running,))).release
        assert gone == machine(2)

    def test_a_node_that_it_is_about_to_remove_is_left_to_it(self) -> None:
        taken = node(1, autoscaler_deleting=True)
        assert decide(snapshot(machine(1), nodes=(taken,))).release == ()

    def test_a_group_keeps_its_minimum_and_another_s_machine_goes(self) -> None:
        here, there = machine(1, A), machine(2, B)
        spec = pool(scaling="autoscaler", min_nodes=1)
        kept: dict[str, Any] = {"keeps": 1, "has_switch": False}
        assert decide(snapshot(here, there, spec=spec, train_a_g6_xlarge=kept)).release == (there,)
        assert decide(snapshot(here, spec=spec, train_a_g6_xlarge=kept)).release == ()
        busy = decide(snapshot(here, there, spec=spec, train_a_g6_xlarge=kept, pods=(pod("train", 2, "run"),)))
        assert busy.release == ()


class TestSwitch:
    def test_is_on_every_group_while_nodes_are_wanted(self) -> None:
        decision = decide(snapshot(leases=(lease(),)))
        assert set(decision.switch.values()) == {SWITCH}
        assert len(decision.switch) == 3

    def test_is_taken_off_once_nothing_is_left(self) -> None:
        gone = decide(snapshot(train_a_g6_xlarge={"switch_at": SWITCH}))
        assert gone.clear_switch == (A,)
        still_there = decide(snapshot(machine(1), nodes=(node(1, cordoned=True),)))
        assert still_there.clear_switch == ()


def test_a_group_that_lacks_tags_is_told_of_unless_others_own_it() -> None:
    stale_tags = {"stale_tags": ("+k8s.io/cluster-autoscaler/enabled=true",)}
    assert decide(snapshot(train_a_g6_xlarge=stale_tags)).update_tags == (A,)
    assert decide(snapshot(train_a_g6_xlarge={**stale_tags, "status": "creating"})).update_tags == ()
    assert decide(snapshot(spec=pool(manage="scale", node_groups=(A,)), train_a_g6_xlarge=stale_tags)).update_tags == ()


def test_a_group_that_this_package_sizes_loses_the_tag_by_which_an_autoscaler_finds_it() -> None:
    invited = {"stale_tags": ("-k8s.io/cluster-autoscaler/enabled",)}
    assert decide(take(train_a_g6_xlarge=invited)).update_tags == (A,)


class TestWaits:
    def wait(self, wait_for: Any = "ready") -> NodesWait:
        return NodesWait(key=key("run"), wait_for=wait_for, started=EARLIER, deadline=LATER)

    def told(self, **group: Any) -> PoolSnapshot:
        switched = {name: {"switch_at": SWITCH, **group} for name in ("train_a_g6_xlarge", "train_b_g6_xlarge")}
        return snapshot(leases=(lease(),), train_c_g6_xlarge={"switch_at": SWITCH}, **switched)

    def test_for_groups_ends_when_the_autoscaler_can_use_them(self) -> None:
        wait = self.wait("groups")
        done = wait.step(self.told())
        assert done.done
        assert done.result is not None
        assert (done.result["nodes"], done.result["timeline"]) == ([], [])
        assert wait.step(self.told(status="creating")).lines[0] == f"node group {A} is being created"
        assert not wait.step(self.told(stale_tags=("+a=b",))).done
        assert not wait.step(snapshot(leases=(lease(),))).done, "the switch is not set yet"

    def test_for_groups_ends_with_an_error_at_its_deadline(self) -> None:
        late = replace(self.told(status="creating"), now=LATER, leases=(lease(until=LATER + timedelta(hours=1)),))
        error = self.wait("groups").step(late).error
        assert isinstance(error, GroupFailed)
        assert "being created" in str(error)

    def test_say_what_hinders_the_autoscaler(self) -> None:
        said = snapshot(leases=(lease(),), train_b_g6_xlarge={"autoscaler_name": "eks-b"})
        status = AutoscalerStatus(updated_at=NOW, backoff={"eks-b": "AWS cannot provision"})
        lines = reported_by_autoscaler(replace(said, autoscaler=status), EARLIER)
        assert lines == (
            "cluster-autoscaler does not try g6.xlarge on-demand in us-west-2b for now: AWS cannot provision",
        )
        dead = AutoscalerStatus(updated_at=NOW - FRESH)
        (line,) = reported_by_autoscaler(replace(said, autoscaler=dead), EARLIER)
        assert "has not reported since" in line

    def test_say_that_no_autoscaler_has_ever_reported(self) -> None:
        waiting = snapshot(leases=(lease(),), pods=(pod("p", None, "run"),))
        (line,) = reported_by_autoscaler(replace(waiting, autoscaler=None), EARLIER)
        assert line == "no cluster-autoscaler has ever reported from the cluster: nothing adds nodes"

    def test_a_stock_out_that_the_autoscaler_met_is_one(self) -> None:
        late = snapshot(
            leases=(lease(until=LATER + timedelta(hours=1)),),
            at=LATER,
            train_a_g6_xlarge={"desired": 1, "launch_failure": dry()},
        )
        assert isinstance(self.wait().step(late).error, OutOfStock)

    def test_a_node_that_the_autoscaler_removes_is_seen_off(self) -> None:
        wait = ReleaseWait(key=key("run"), started=NOW, deadline=LATER)
        progress = wait.step(snapshot(machine(1), nodes=(node(1, autoscaler_deleting=True),)))
        assert not progress.done
        assert "waiting for cluster-autoscaler to finish removing node node-1" in progress.lines
        assert wait.step(snapshot()).done
