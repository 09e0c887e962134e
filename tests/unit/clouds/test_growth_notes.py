"""What a plan says of nodes that are missing."""

from __future__ import annotations

from datetime import timedelta

from airflow_gpu_provider.clouds.backoff import growth_notes
from tests.unit.scaling.pools import NOW, ZONES, A, B, dry, groups, machine, pool

SPEC = pool()
CANDIDATES = SPEC.candidates(ZONES)


def test_what_is_missing_is_asked_for_in_the_first_place_first() -> None:
    there = groups(SPEC, machine(1), machine(2, state="terminating"))
    assert growth_notes(SPEC, 1, CANDIDATES, there, NOW) == ()
    assert growth_notes(SPEC, 2, CANDIDATES, there, NOW) == (f"{A} 1->2 (g6.xlarge on-demand in us-west-2a first)",)
    assert growth_notes(SPEC, 9, CANDIDATES, there, NOW) == growth_notes(SPEC, SPEC.max_nodes, CANDIDATES, there, NOW)
    assert growth_notes(SPEC, 1, CANDIDATES, [], NOW) == (f"{A} 0->1 (g6.xlarge on-demand in us-west-2a first)",)


def test_what_had_no_machine_a_short_time_ago_is_passed_over_and_said() -> None:
    a = {"launch_failure": dry(1)}
    assert growth_notes(SPEC, 1, CANDIDATES, groups(SPEC, train_a_g6_xlarge=a), NOW) == (
        f"{B} 0->1 (g6.xlarge on-demand in us-west-2b first)",
        "not g6.xlarge on-demand in us-west-2a: InsufficientInstanceCapacity, not tried again until 02:04Z",
    )


def test_where_all_is_passed_over_the_first_to_be_tried_again_is_said() -> None:
    names = [candidate.group.replace("-", "_") for candidate in CANDIDATES]
    dried = {name: {"launch_failure": dry(minutes)} for name, minutes in zip(names, (1, 3, 2), strict=True)}
    lines = growth_notes(SPEC, 1, CANDIDATES, groups(SPEC, **dried), NOW)
    assert lines[0] == f"{B} 0->1 (g6.xlarge on-demand in us-west-2b first, at 02:02Z)"
    assert len(lines) == 4
    assert len(growth_notes(SPEC, 1, CANDIDATES, groups(SPEC, **dried), NOW + timedelta(minutes=6))) == 1
