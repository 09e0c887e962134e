"""The course of things: rounds in which everybody does what is due, and how it all has to end."""

from __future__ import annotations

from airflow_gpu_provider.cluster.model.pool_pod import Pod
from airflow_gpu_provider.pools.switch import SWITCH_MARGIN
from tests.unit.scaling.model import autoscaler
from tests.unit.scaling.model.actors import Actor
from tests.unit.scaling.model.world import World

ROUNDS = 400
"""Rounds of 15 seconds in which everybody who is left has to be done, when nothing goes wrong any more."""

_SWITCH_LATE = 6 * 60.0
"""Seconds by which a switch may be later than it has to be: whole minutes, and five in which it is left where it is."""


def go_round(world: World, actors: list[Actor], *, pods_end: bool = False, pods_start: bool = True) -> None:
    """Fifteen seconds in which these actors, the cloud and the cluster do all that they have to do."""
    ends = world.actors.time + 15
    world.everything_happens(pods_start=pods_start)
    if pods_end:
        world.pods_end()
    for actor in actors:
        while actor.alive and max(actor.wakes_at, world.actors.time) < ends:
            actor.step()
    world.actors.advance_to(ends)
    world.check()


def all_get_done(world: World) -> None:
    """From here on nothing goes wrong: whoever is alive must get its nodes and be done, and then nothing is left."""
    for asg in world.cloud.asgs.values():
        asg.out_of_stock = False
    world.uncordon_by_people()
    for _ in range(ROUNDS):
        if not world.actors.alive:
            break
        go_round(world, world.actors.alive, pods_end=True)
    world.require(not world.actors.alive, f"{[actor.name for actor in world.actors.alive]} starve")
    _janitor_ends_what_the_dead_left(world)


def all_are_killed(world: World) -> None:
    """From here on nobody looks any more: the cloud alone ends everything, in time."""
    for actor in world.actors.alive:
        actor.kill()
    latest = world.pool.max_runtime + SWITCH_MARGIN
    world.actors.advance_to(world.actors.time + latest.total_seconds() + _SWITCH_LATE)
    for _ in range(world.pool.max_nodes + 1):  # a group takes one machine at a time
        world.everything_happens(pods_start=False)
    if world.pool.is_autoscaled:
        _autoscaler_ends_what_it_added(world)
    _require_nothing(world)


def _janitor_ends_what_the_dead_left(world: World) -> None:
    for pod in map(Pod.parse, list(world.pods.values())):
        if not pod.run:
            world.remove_pod(pod.name)
    world.actors.advance_to(world.actors.time + world.pool.max_runtime.total_seconds() + 1)
    world.pods_end()  # who waits for them does it: those whose lease somebody deleted have no other end
    world.start_janitor()
    for _ in range(60):  # what has ended and is never collected holds its node for ten minutes
        go_round(world, world.actors.alive)
    _require_nothing(world)


def _autoscaler_ends_what_it_added(world: World) -> None:
    """Pods still start, and are ended by who waits for them; and idle nodes go."""
    world.uncordon_by_people()  # or pods wait for good for a node that only people can give back
    for _ in range(8 * world.pool.max_nodes):
        world.actors.advance_to(world.actors.time + 15)
        world.pods_end()
        world.everything_happens()
        autoscaler.takes_size_back(world)
        if not world.pending():
            for node in world.idle():
                autoscaler.begins_to_remove(world, node)


def _require_nothing(world: World) -> None:
    """Nothing is left but what owners of groups keep, which is as they had it."""
    asgs = world.cloud.asgs.values()
    sizes = {asg.candidate.group: (len(asg.machines), asg.desired) for asg in asgs if asg.switch_at is None}
    switches = [asg.candidate.group for asg in asgs if asg.switch_at and not asg.owned]
    right = all((len(asg.machines), asg.desired) == (asg.keeps, asg.keeps) for asg in asgs)
    world.require(right and not switches, f"machines and sizes {sizes} and switches of {switches} are left")
