"""Nights with a max_cost in which everybody who could end the nodes dies: the cloud's own switch ends them in time.

Ensure's demand and what looks after it are the package's own, on the model's cloud, which carries out switches,
replaces what it takes back, and knows when its machines ran.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from random import Random

import pytest

from airflow_gpu_provider.clouds.base import MachineLife
from airflow_gpu_provider.errors import BudgetExceeded
from airflow_gpu_provider.money.budget import least
from tests.unit.scaling.model.night import Night

HOUR = timedelta(hours=1)
STEP = 20.0
"""Seconds between two looks at what there is to pay: a machine counts for all of the step in which it is seen."""


class Meter:
    """What the cloud knows of a pool's machines: when they ran."""

    def __init__(self, night: Night) -> None:
        self._world = night.world
        self._lives: dict[str, MachineLife] = {}

    def look(self) -> list[str]:
        """Take machines as they are now, and return those that run."""
        asgs = self._world.cloud.asgs
        there = {machine: name for name, asg in asgs.items() for machine in asg.live}
        for machine, group in there.items():
            new = MachineLife(id=machine, group=group, node=f"node-{machine}", launched_at=self._world.now)
            self._lives.setdefault(machine, new)
        for machine, life in self._lives.items():
            if machine not in there and life.ended_at is None:
                self._lives[machine] = replace(life, ended_at=self._world.now)
        return [*there]

    def lives(self, *_: object, **__: object) -> tuple[MachineLife, ...]:
        return tuple(self._lives.values())


def cost_of(night: Night, meter: Meter, draw: Random, nodes: int, price: float, limit: float) -> float:
    """Return what the night costs until nothing is left: somebody looks now and then, until all die at some time."""
    world, key, cost = night.world, night.key("one"), 0.0

    def ensure() -> None:
        (lease,) = night.ask(night.lead, key, nodes, world.now + 6 * HOUR, max_cost=limit).snapshot.leases
        world.ends[key.hash] = lease.until

    ensure()
    dies_at = world.now + draw.choice([0.0, 0.3, 1.0, 1.5]) * (world.ends[key.hash] - world.now)
    for _ in range(4000):
        if world.now < min(dies_at, world.ends[key.hash]) and draw.random() < 0.01:
            try:
                ensure()  # it was cleared, or its worker died: what has been spent by now counts
            except BudgetExceeded:
                dies_at = world.now
        if world.now < dies_at and draw.random() < 0.5:
            night.lead.reconcile()
        if (there := meter.look()) and draw.random() < 0.005:
            world.lose(draw.choice(there))
        world.everything_happens()
        cost += len(meter.look()) * price * STEP / 3600
        world.actors.advance_to(world.actors.time + STEP)
        if world.now > world.ends[key.hash] and not meter.look():
            return cost
    raise AssertionError("machines are left")


@pytest.mark.parametrize("seed", range(50))
def test_a_night_never_costs_more_than_its_limit(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = Random(seed)
    nodes, price = draw.randint(1, 3), draw.choice([0.8, 8.0, 120.0])
    night = Night(max_nodes=nodes, price_per_hour=price)
    meter = Meter(night)
    monkeypatch.setattr(night.lead.platform, "lives", meter.lives)
    limit = draw.uniform(0.8, 5.0) * least(night.pool, nodes * price)
    if limit < least(night.pool, nodes * price):
        with pytest.raises(BudgetExceeded, match="Raise max_cost to"):
            cost_of(night, meter, draw, nodes, price, limit)
        assert not meter.look()
        return
    cost = cost_of(night, meter, draw, nodes, price, limit)
    assert 0 < cost <= limit
