"""What was just written holds, though the cloud shows its state of before."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_gpu_provider.clouds.backoff import SHOWN_AFTER
from airflow_gpu_provider.clouds.base import Group, Machine
from airflow_gpu_provider.errors import CloudError
from airflow_gpu_provider.pools import Candidate
from airflow_gpu_provider.scaling.state.recent_writes import GONE_AFTER, RecentWrites
from tests.unit.scaling.model.course import all_get_done, go_round
from tests.unit.scaling.model.world import World

NOW = datetime(2026, 3, 1, 3, 0, tzinfo=UTC)
GROUP = "train-a"


def machine(id_: str, launched_at: datetime | None = None) -> Machine:
    return Machine(id=id_, group=GROUP, state="running", launched_at=launched_at)


def group(desired: int, *machines: Machine) -> Group:
    place = Candidate(group=GROUP, zone="us-west-2a", instance_type="g6.xlarge", market="ON_DEMAND")
    return Group(name=GROUP, candidate=place, status="active", desired=desired, max_size=9, machines=machines)


def seen(recent: RecentWrites, shown: Group, now: datetime) -> Group:
    (found,) = RecentWrites.parse(recent.dump()).on([shown], now)
    return found


def test_a_size_that_was_just_set_is_the_size_and_what_is_shown_is_later() -> None:
    recent = RecentWrites().with_size(GROUP, 2, NOW)

    assert seen(recent, group(0), NOW + SHOWN_AFTER / 2).desired == 2
    assert seen(recent, group(0), NOW + SHOWN_AFTER).desired == 0


def test_a_machine_that_was_released_is_on_its_way_out_and_out_of_the_size() -> None:
    one, other = machine("i-1"), machine("i-2")
    shown = group(2, one, other)
    recent = RecentWrites().with_released([one], [shown], NOW)
    now = seen(recent, shown, NOW + SHOWN_AFTER / 2)

    assert (now.desired, now.live) == (1, (other,))
    # It never comes back, however long it is shown; sizes are others' to change.
    late = seen(recent, shown, NOW + GONE_AFTER / 2)
    assert (late.desired, late.live) == (2, (other,))


def test_a_group_whose_upgrade_just_began_gets_no_machine_though_it_is_shown_as_before() -> None:
    recent = RecentWrites().with_upgraded([GROUP], NOW)

    assert seen(recent, group(0), NOW + SHOWN_AFTER / 2).status == "upgrading"
    assert seen(recent, group(1, machine("i-1")), NOW + SHOWN_AFTER / 2).status == "active"
    assert seen(recent, group(0), NOW + SHOWN_AFTER).status == "active"


def test_a_group_that_was_just_grown_and_is_not_shown_is_not_taken_for_none() -> None:
    recent = RecentWrites().with_size(GROUP, 1, NOW)

    with pytest.raises(CloudError, match=f"does not show {GROUP}"):
        recent.on([], NOW)
    assert recent.on([], NOW + SHOWN_AFTER) == ()
    assert RecentWrites().with_size(GROUP, 0, NOW).on([], NOW) == ()


def test_another_machine_with_its_name_is_another_machine() -> None:
    before, after = machine("gke-1", NOW - timedelta(hours=1)), machine("gke-1", NOW + timedelta(seconds=40))
    recent = RecentWrites().with_released([before], [group(1, before)], NOW)

    assert seen(recent, group(1, after), NOW + timedelta(minutes=1)).live == (after,)


def test_sizes_that_an_autoscaler_sets_are_not_kept() -> None:
    recent = RecentWrites().with_released([machine("i-1")], (), NOW)

    assert seen(recent, group(1, machine("i-1")), NOW).desired == 1


@pytest.mark.parametrize("text", ["", "nonsense", "[]", '{"sizes": 3}', '{"sizes": {"a": [1, "2026-03-01T03:00:00"]}}'])
def test_what_cannot_be_read_says_nothing(text: str) -> None:
    assert RecentWrites.parse(text) == RecentWrites()


@given(
    st.lists(st.tuples(st.sampled_from(["grow", "release"]), st.integers(1, 5)), max_size=20),
    st.integers(0, 20),
)
def test_whichever_state_of_before_is_shown_the_size_and_the_machines_are_those_of_now(
    writes: list[tuple[str, int]], shown_before: int
) -> None:
    """The writes of one moment, each on what the one before left; the cloud shows any state that there was."""
    recent, desired, machines, count = RecentWrites(), 0, (), 0
    states = [group(0)]
    for what, number in writes:
        now = seen(recent, states[-1], NOW)
        assert (now.desired, now.live) == (desired, machines)
        if what == "grow":
            desired += number
            recent = recent.with_size(GROUP, desired, NOW)
            for _ in range(number):
                count += 1
                machines = (*machines, machine(f"i-{count}"))
        else:
            going, machines = machines[:number], machines[number:]
            desired -= len(going)
            recent = recent.with_released(going, [now], NOW)
        states.append(group(desired, *machines))
    shown = states[-1 - shown_before % len(states)]
    now = seen(recent, shown, NOW)

    assert now.desired == desired
    assert set(now.live) <= set(machines), "a machine that was released is shown"


# -- in the protocol -----------------------------------------------------------------------------------------


def test_a_run_does_not_take_over_a_machine_that_is_released_and_still_shown() -> None:
    """The node is there for some seconds more; a pod that came to it would die with the machine."""
    world = World(max_nodes=1)
    world.start_run(nodes=1)
    (first,) = world.actors.all
    while not world.running():
        go_round(world, [first])
    before = world.cloud.copied()
    world.pods_end()
    while first.alive:
        first.step()
    assert world.released == {"i-1"}

    world.cloud.shown = before
    world.start_run(nodes=1)
    second = world.actors.all[-1]
    for _ in range(30):
        second.step()

    assert world.nodes["node-i-1"]["spec"].get("unschedulable"), "its node is open to pods again"
    world.cloud.shown = None
    all_get_done(world)
    world.actors.close()


def test_a_size_that_was_just_set_is_not_left_behind_though_it_is_not_shown_yet() -> None:
    """A run asks for a machine and is ended at once: what is shown is a pool at zero."""
    world = World(max_nodes=1)
    before = world.cloud.copied()
    world.cloud.shown = before
    world.start_run(nodes=1)
    (first,) = world.actors.all
    while not any(asg.desired for asg in world.cloud.asgs.values()):
        first.step()
    for _ in range(5):
        first.step()
    run = world.runs[first.name]
    first.kill()
    world.actors.advance_to(world.actors.time + 1)
    world.actors.start("scale-down", run._scale_down)
    (_, scale_down) = world.actors.all
    for _ in range(100):
        if not scale_down.alive:
            break
        scale_down.step()
    world.cloud.shown = None

    all_get_done(world)
    world.require_no_size_without_demand()
    world.actors.close()
