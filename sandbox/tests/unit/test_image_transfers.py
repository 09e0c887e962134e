"""Pulls that share a node's disk: each byte takes its time, whatever comes and goes meanwhile."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_sandbox.nodes.image_transfers import ImageTransfers, Transfers, image_rate

SIZES = st.lists(st.integers(1, 10**6), min_size=1, max_size=6)


@given(SIZES, st.lists(st.floats(0.001, 50), max_size=8))
def test_all_of_them_take_as_long_as_their_bytes_whatever_steps_time_takes(
    sizes: list[int], steps: list[float]
) -> None:
    transfers = Transfers(1000.0)
    for number, size in enumerate(sizes):
        transfers.begin(str(number), size)
    there = [each for step in (*steps, sum(sizes) / 1000 + 1) for each in transfers.live(step)]
    assert [int(name) for name, _ in there] == sorted(range(len(sizes)), key=lambda number: (sizes[number], number))
    assert there[-1][1] == pytest.approx(sum(sizes) / 1000, abs=0.01)


def test_one_that_comes_later_slows_the_first() -> None:
    transfers = Transfers(100.0)
    transfers.begin("a", 1000)
    assert transfers.live(5) == []
    transfers.begin("b", 1000)
    assert transfers.until_next() == 10
    assert transfers.live(60) == [("a", 15), ("b", 20)]


def test_a_disk_takes_a_third_of_what_it_writes_in_images() -> None:
    assert 12 * 2**30 / image_rate(125.0) == pytest.approx(295, abs=1)


async def test_who_asks_for_the_same_waits_for_the_same() -> None:
    transfers, never = ImageTransfers(100.0, by_hand=True), asyncio.Event()
    first = asyncio.create_task(transfers.take("train", 1000, never))
    await asyncio.sleep(0)
    transfers.live(4)
    second = asyncio.create_task(transfers.take("train", 1000, never))
    await asyncio.sleep(0)
    assert not first.done()
    transfers.live(60)
    assert (await first, await second) == (10, 6)


async def test_who_is_stopped_waits_no_longer() -> None:
    transfers, stopped = ImageTransfers(100.0, by_hand=True), asyncio.Event()
    taking = asyncio.create_task(transfers.take("train", 1000, stopped))
    await asyncio.sleep(0)
    transfers.live(3)
    stopped.set()
    assert await taking == 3


async def test_by_the_machines_time_it_is_there_by_itself() -> None:
    assert await ImageTransfers(10**6, by_hand=False).take("train", 20_000, asyncio.Event()) >= 0.02
