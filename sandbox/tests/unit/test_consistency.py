"""What reads see of a state that changes: one that there was, never older than said, the same for the same seed."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from gpu_sandbox.consistency import History, Staleness

LONGEST = 10.0


@dataclass
class Thing:
    """Something that changes in place, as the clouds' objects do."""

    size: int


def copy(thing: Thing) -> Thing:
    return Thing(thing.size)


writes = st.lists(
    st.tuples(st.floats(0, 3), st.sampled_from("abc"), st.one_of(st.none(), st.integers(0, 3))), max_size=30
)
"""How long after the one before, to what, and its new size; None ends it."""


def played(
    series: list[tuple[float, str, int | None]],
) -> tuple[History[str, Thing], list[tuple[float, dict[str, int]]]]:
    """A history of things that were changed in place, and each state that there was, with its time."""
    history: History[str, Thing] = History(mark=lambda thing: thing.size, copy=copy, longest=LONGEST)
    now, things = 100.0, {"a": Thing(0)}
    history.record(things, now)
    truth = [(now, {"a": 0})]
    for wait, name, size in series:
        now += wait
        if size is None:
            things.pop(name, None)
        else:
            things.setdefault(name, Thing(size)).size = size
        history.record(things, now)
        truth.append((now, {key: thing.size for key, thing in things.items()}))
    return history, truth


@given(writes, st.floats(0, LONGEST), st.floats(0, 5))
def test_a_read_sees_all_writes_up_to_one_moment_and_none_after_it(
    series: list[tuple[float, str, int | None]], age: float, later: float
) -> None:
    history, truth = played(series)
    then = truth[-1][0] + later - age

    seen = {key: thing.size for key, thing in history.at(then).items()}

    oldest = truth[0][1]
    assert seen == [oldest, *(state for at, state in truth if at <= then)][-1]


@given(writes, st.lists(st.floats(0, LONGEST), min_size=2, max_size=2).map(sorted))
def test_a_younger_read_misses_nothing_that_an_older_one_saw(
    series: list[tuple[float, str, int | None]], ages: list[float]
) -> None:
    history, truth = played(series)
    states = [state for _, state in truth]
    now = truth[-1][0]
    young, old = ({key: thing.size for key, thing in history.at(now - age).items()} for age in ages)

    assert any(states[n] == old and young in states[n:] for n in range(len(states)))


@given(writes)
def test_what_is_read_does_not_change_when_the_thing_does(series: list[tuple[float, str, int | None]]) -> None:
    history, truth = played([*series, (0.1, "a", 1)])
    now = truth[-1][0]
    seen = history.at(now)
    before = {key: thing.size for key, thing in seen.items()}

    history.record({"a": Thing(3)}, now + 1)

    assert {key: thing.size for key, thing in seen.items()} == before


@given(st.integers(), st.floats(0, 100), st.integers(1, 50))
def test_ages_are_within_their_bound_and_the_same_for_the_same_seed(seed: int, longest: float, reads: int) -> None:
    one, other = Staleness(seed=seed, longest=longest), Staleness(seed=seed, longest=longest)
    ages = [one.age("eks:ListNodegroups") for _ in range(reads)]
    # What else is read in between does not count.
    others = [(other.age("ec2:DescribeInstances"), other.age("eks:ListNodegroups"))[1] for _ in range(reads)]

    assert ages == others
    assert all(0 <= age <= longest for age in ages)


def test_reads_are_now_fresh_and_now_stale() -> None:
    staleness = Staleness(seed=1, longest=5.0)
    ages = [staleness.age("eks:ListNodegroups") for _ in range(100)]

    assert 20 < sum(age == 0 for age in ages) < 80
    assert max(ages) > 4


def test_seeds_differ() -> None:
    one, other = Staleness(seed=1, longest=5.0), Staleness(seed=2, longest=5.0)

    assert [one.age("x") for _ in range(20)] != [other.age("x") for _ in range(20)]
