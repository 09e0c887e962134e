"""What is asked of every night, whatever struck it: zero, nobody else harmed, no failure green, no training lost."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from tests.airflow.chaos.cell import Cell, Night
from tests.airflow.chaos.faults import Ends, Promise, ZeroBy
from tests.airflow.chaos.pods import PodStory
from tests.airflow.chaos.world import PRICE, PoolLeft, World
from tests.sandbox.ec2_times import instances_of

BOUNDS: dict[ZeroBy, float] = {"itself": 60.0, "triggers": 120.0, "janitor": 120.0, "max_runtime": 60.0}
"""Seconds from the run's end, or from when the janitor was started, to zero."""

DELETION_BOUND = 120.0
"""Seconds in which a pool's deletion leaves nothing at all."""

_ENDS = timedelta(seconds=15)
"""How long a pod's grace period and a machine's end take in the sandbox."""

_ENDED = {"green": "success", "red": "failed", "deleted": "deleted"}


def promise_of(cell: Cell) -> Promise:
    """What a night owes that meets all of a cell's faults: the least that one of them leaves it to owe."""
    promises = [strike.promise for strike in cell.strikes]
    ends: set[Ends] = {promise.ends for promise in promises}
    return Promise(
        ends=ends.pop() if len(ends) == 1 else "any",
        keeps_pod=all(promise.keeps_pod for promise in promises),
        zero_by=max((promise.zero_by for promise in promises), key=list(BOUNDS).index),
    )


@dataclass(frozen=True, kw_only=True)
class Zero:
    """When zero came: seconds after nobody wanted anything any more; None where it did not come in time."""

    seconds: float | None
    left: str


def wait_for_zero(world: World, pool: str, *, bound: float, since: float, is_zero: Callable[[PoolLeft], bool]) -> Zero:
    """Look until zero is there; `since` is a time of the monotonic clock."""
    left = "nobody could look"
    while True:
        world.revive()
        try:
            found = world.left(pool)
        except OSError:
            pass  # the API server is away: not zero yet
        else:
            left = str(found)
            if is_zero(found):
                return Zero(seconds=round(time.monotonic() - since, 1), left="")
        if time.monotonic() - since > bound:
            return Zero(seconds=None, left=left)
        time.sleep(0.5)


def broken_promises(night: Night, promise: Promise, *, ended: bool) -> list[str]:
    """What the runs of a night have not kept, in words."""
    if not ended:
        return [f"the run has not ended: {night.state()}"]
    broken = [*night.broken]
    state = night.state()
    if promise.ends != "any" and state != _ENDED[promise.ends]:
        broken.append(f"the run is {state}, and was to be {_ENDED[promise.ends]}")
    if state == "success" and not has_trained(night.pods):
        broken.append("the run is green, and no training has ended well")
    if promise.keeps_pod:
        broken += lost_trainings(night.at_strike, night.pods)
    return broken


def overspent(night: Night) -> list[str]:
    """Say it where a run that is over has cost more than its max_cost, which holds the time in which its pods may stop.

    By the cloud's own times, at the price that it listed when the run asked.
    """
    if "max_cost" not in night.conf:
        return []
    ran = sum(machine.seconds for machine in instances_of(night.pool, night.world.sandbox.aws))
    cost, bound = PRICE / 3600 * ran, night.conf["max_cost"]
    return [f"it has cost {cost:.2f}, and may cost {bound:.2f}"] if cost > bound else []


def has_trained(pods: list[PodStory]) -> bool:
    """Whether a training has ended well: on each rank where it is a gang."""
    ranks = {pod.rank for pod in pods}
    return bool(ranks) and ranks == {pod.rank for pod in pods if pod.ended_well}


def lost_trainings(before: list[PodStory], after: list[PodStory]) -> list[str]:
    """Say which of the pods that were there at the strike did not end by themselves."""
    now = {pod.uid: pod for pod in after}
    return [f"an outage that ended has cost a training: {now[pod.uid]}" for pod in before if now[pod.uid].killed]


def harmed_by(night: Night) -> list[str]:
    """Say which pods of other runs on the night's pool were killed, and which other runs did not end well."""
    world = night.world
    killed = [str(pod) for run in night.others for pod in world.pods.of_run(run.run_id) if pod.killed]
    states = {run.run_id: night.state(run) for run in night.others}
    return killed + [f"{run_id} is {state}" for run_id, state in states.items() if state != "success"]
