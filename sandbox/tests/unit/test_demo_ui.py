"""Which earlier nights the demonstration plays."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from gpu_sandbox.demo_ui import NIGHTS, earlier_nights


def test_each_of_the_days_before_has_one_night_at_two_the_newest_first() -> None:
    now = datetime(2026, 3, 1, 1, 30, tzinfo=UTC)
    nights = [*earlier_nights(now)]
    assert [night.due for night in nights] == [
        datetime(2026, 3, 1, 2, tzinfo=UTC) - timedelta(days=days) for days in range(1, NIGHTS + 1)
    ]
    assert len({night.run_id for night in nights}) == NIGHTS
    assert all(night.due < now for night in nights)


def test_one_is_red_and_another_meets_a_stock_out_and_both_say_so() -> None:
    nights = [*earlier_nights(datetime.now(UTC))]
    (red,) = (night for night in nights if night.fails)
    (short,) = (night for night in nights if night.has_stockout)
    assert str(red) == "the night of 4 days ago (the training fails)"
    assert str(short) == "the night of 7 days ago (no capacity in the first zone)"
    assert str(nights[0]) == "the night of 1 day ago"
