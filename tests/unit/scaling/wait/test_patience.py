"""Which errors a wait bears, and for how long: in virtual time."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_gpu_provider import errors
from airflow_gpu_provider.cluster.model import refusals
from airflow_gpu_provider.scaling.wait.retry import Tolerance

START = datetime(2026, 3, 1, 2, tzinfo=UTC)
DEADLINE = START + timedelta(minutes=30)
DOCS = Path(__file__).parents[4] / "docs" / "running.md"
ZERO = timedelta(0)


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def tolerated_for(error: errors.GpuError, *, worked: bool = False) -> float:
    """Return for how many seconds an error that comes each second is borne."""
    patience = Tolerance(DEADLINE, worked=worked)
    seconds = 0
    while patience.allows(error, at(seconds)):
        seconds += 1
    return seconds


@pytest.mark.parametrize(
    ("cls", "at_first", "worked"),
    [
        (errors.ClusterUnreachable, 1800, 1800),
        (errors.CloudError, 1800, 1800),
        (errors.DemandLockBusy, 1800, 1800),
        (errors.DemandLockLost, 1800, 1800),
        (errors.ResourceQuotaExceeded, 1800, 1800),
        (refusals.ObjectChanged, 1800, 1800),
        (errors.CredentialsError, 300, 1800),
        (errors.ConnectionNotFound, 300, 1800),
        (errors.PermissionDenied, 300, 300),
        (errors.RequestRejected, 60, 60),
        (refusals.ObjectNotFound, 60, 1800),
        (errors.ReferenceNotFound, 0, 0),
        (errors.ServiceDisabled, 0, 0),
        (errors.ObjectRejected, 0, 0),
        (errors.AdmissionDenied, 0, 0),
        (errors.NamespaceTerminating, 0, 0),
        (errors.PoolDrift, 0, 0),
        (errors.QuotaExceeded, 0, 0),
        (errors.OutOfStock, 0, 0),
    ],
)
def test_how_long_an_error_is_borne_is_part_of_its_type(
    cls: type[errors.GpuError], at_first: float, worked: float
) -> None:
    assert tolerated_for(cls("It broke.")) == at_first
    assert tolerated_for(cls("It broke."), worked=True) == worked


def test_a_success_or_another_error_in_between_starts_it_anew() -> None:
    denied, away = errors.PermissionDenied("No."), errors.ClusterUnreachable("Away.")
    for between in ("success", "another error"):
        patience = Tolerance(DEADLINE)
        assert patience.allows(denied, at(0))
        assert patience.allows(denied, at(299))
        if between == "success":
            patience.succeeded()
        else:
            patience.allows(away, at(299.5))
        assert patience.allows(denied, at(300))
        assert patience.allows(denied, at(599))
        assert not patience.allows(denied, at(600))


@pytest.mark.parametrize(
    ("error", "until"),
    [
        (errors.PermissionDenied("No.", "Allow it."), "2026-03-01 02:05:20Z"),
        (errors.CloudError("No.", "Allow it."), "2026-03-01 02:30:00Z"),
        (errors.CredentialsError("No.", "Allow it."), "2026-03-01 02:05:20Z"),
    ],
)
def test_an_error_is_told_with_the_time_until_which_it_is_borne(error: errors.GpuError, until: str) -> None:
    patience = Tolerance(DEADLINE)
    for seconds in (20, 200):
        assert patience.allows(error, at(seconds))
        line = f"{type(error).__name__}: No. Allow it. Trying again until {until} at the latest."
        assert patience.in_words(error) == line


def test_the_table_of_refusals_is_what_the_types_say() -> None:
    rows = re.findall(
        r"^\| (`\w+`(?:, `\w+`)*) \| .* \| (the whole wait|(\d+)[^|]*) \|$", DOCS.read_text(), re.MULTILINE
    )
    assert len(rows) > 9
    for names, says, minutes in rows:
        for name in re.findall(r"`(\w+)`", names):
            cls: type[errors.GpuError] = getattr(errors, name, None) or getattr(refusals, name)
            assert cls.tolerated_for == (timedelta(minutes=int(minutes)) if minutes else None), name
            with_access = cls.tolerated_for is None or (cls.retryable and cls.tolerated_for != ZERO)
            assert ("whole wait" in says) == with_access, name
    named = {name for names, _, _ in rows for name in re.findall(r"`(\w+)`", names)}
    assert named >= {cls.__name__ for cls in vars(errors).values() if isinstance(cls, type) and _is_borne(cls)}


def _is_borne(cls: type) -> bool:
    return issubclass(cls, errors.GpuError) and cls.tolerated_for != ZERO


KINDS = st.sampled_from(errors.error_types())


@given(st.lists(st.tuples(st.floats(0, 4000), st.none() | KINDS), min_size=1))
def test_nothing_is_borne_past_the_deadline_and_nothing_longer_than_its_type_says(
    calls: list[tuple[float, type[errors.GpuError] | None]],
) -> None:
    patience, worked = Tolerance(DEADLINE), False
    since: datetime | None = None
    before: type[errors.GpuError] | None = None
    for seconds, kind in sorted(calls, key=lambda call: call[0]):
        now = at(seconds)
        if kind is None:
            patience.succeeded()
            worked, before = True, None
            continue
        since = now if since is None or kind is not before else since
        before = kind
        goes_on = patience.allows(kind("It broke."), now)
        longest = DEADLINE - since if kind.tolerated_for is None or (worked and kind.retryable) else kind.tolerated_for
        assert goes_on == (now < DEADLINE and now - since < longest and kind.tolerated_for != ZERO)
