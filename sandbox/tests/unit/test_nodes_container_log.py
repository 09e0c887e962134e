"""A container's log, written and read."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpu_sandbox.nodes import container_log
from gpu_sandbox.nodes.container_log import ContainerLog, LogOptions


async def read(log: ContainerLog, **options: object) -> bytes:
    return b"".join([piece async for piece in log.read(LogOptions(**options))])  # type: ignore[arg-type]


async def test_lines_appear_when_they_are_whole(tmp_path: Path) -> None:
    log = ContainerLog(tmp_path / "log", max_size=10 * 2**20)
    log.write("stdout", b"one\ntw")
    assert await read(log) == b"one\n"
    log.write("stdout", b"o\nthree")
    assert await read(log) == b"one\ntwo\n"
    log.close()
    assert await read(log) == b"one\ntwo\nthree"


async def test_tails_and_limits(tmp_path: Path) -> None:
    log = ContainerLog(tmp_path / "log", max_size=10 * 2**20)
    log.write("stdout", b"a\nb\nc\nd")
    log.close()
    assert await read(log, tail_lines=2) == b"c\nd"
    assert await read(log, tail_lines=0) == b""
    assert await read(log, limit_bytes=3) == b"a\nb"
    assert log.tail(2, 100) == "c\nd"
    assert log.tail(80, 2) == "\nd"


LONG = b"x" * 50000


async def test_a_very_long_line_is_kept_in_parts(tmp_path: Path) -> None:
    """It is one line to a reader, with one time; but tails count the parts, of 16 KiB."""
    log = ContainerLog(tmp_path / "log", max_size=10 * 2**20)
    log.write("stdout", b"first\n" + LONG + b"\nlast\n")
    assert await read(log) == b"first\n" + LONG + b"\nlast\n"
    lines = (await read(log, timestamps=True)).splitlines()
    assert [line.partition(b" ")[2] for line in lines] == [b"first", LONG, b"last"]
    assert await read(log, tail_lines=2) == b"x" * (50000 % 16384) + b"\nlast\n"


@pytest.mark.parametrize("length", [16384, 16385, 32768, 40000])
async def test_a_long_line_has_one_time_however_it_came(tmp_path: Path, length: int) -> None:
    log = ContainerLog(tmp_path / "log", max_size=10 * 2**20)
    for start in range(0, length, 4096):
        log.write("stdout", b"x" * min(4096, length - start))
    log.write("stdout", b"\nnext\n")
    lines = (await read(log, timestamps=True)).splitlines()
    assert [len(line.partition(b" ")[2]) for line in lines] == [length, 4]


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not is_so():  # noqa: ASYNC110 - a file's appearance is no event
            await asyncio.sleep(0.01)


def rotated(tmp_path: Path) -> list[Path]:
    return list(tmp_path.glob("log.*"))


async def rotate(log: ContainerLog, tmp_path: Path) -> None:
    """Fill the file, and wait until another one has its place."""
    before = (tmp_path / "log").stat().st_ino
    log.write("stdout", b"x" * 200 + b"\n")
    await until(lambda: (tmp_path / "log").stat().st_ino != before)


def a_small_log(tmp_path: Path) -> ContainerLog:
    return ContainerLog(tmp_path / "log", max_size=200, looks_every=0.05)


async def test_what_was_rotated_away_is_served_to_nobody(tmp_path: Path) -> None:
    log = a_small_log(tmp_path)
    log.write("stdout", b"first\n")
    assert await read(log) == b"first\n"
    await rotate(log, tmp_path)
    assert await read(log) == b"", "also while nothing is written any more"
    log.write("stdout", b"last\n")
    assert await read(log, since=datetime(2000, 1, 1, tzinfo=UTC)) == b"last\n"
    assert log.tail(80, 2048) == "last\n"
    log.close()
    assert await read(log) == b"last\n"


async def test_a_log_that_does_not_grow_to_its_size_is_not_rotated(tmp_path: Path) -> None:
    log = a_small_log(tmp_path)
    log.write("stdout", b"first\n")
    await asyncio.sleep(0.2)
    assert (await read(log), rotated(tmp_path)) == (b"first\n", [])


async def test_five_files_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = itertools.count()
    start = datetime(2026, 1, 1, tzinfo=UTC)
    monkeypatch.setattr(container_log.clock, "now", lambda: start + timedelta(seconds=next(seconds)))
    log = a_small_log(tmp_path)
    for _ in range(7):
        await rotate(log, tmp_path)
    assert len(rotated(tmp_path)) == 4
    log.close()


async def test_a_log_that_has_ended_is_not_rotated(tmp_path: Path) -> None:
    log = a_small_log(tmp_path)
    log.write("stdout", b"x" * 200 + b"\n")
    log.close()
    await asyncio.sleep(0.2)
    assert await read(log) == b"x" * 200 + b"\n"


async def test_a_follower_goes_on_in_the_next_file(tmp_path: Path) -> None:
    log = a_small_log(tmp_path)
    got: list[bytes] = []

    async def follow() -> None:
        async for piece in log.read(LogOptions(follow=True)):
            got.append(piece)

    follower = asyncio.create_task(follow())
    expected = b""
    for index in range(3):
        line = f"{index}\n".encode()
        log.write("stdout", line)
        await rotate(log, tmp_path)
        expected += line + b"x" * 200 + b"\n"
    log.write("stdout", b"last\n")
    await until(lambda: b"".join(got) == expected + b"last\n")
    log.close()
    await asyncio.wait_for(follower, 60)
    assert b"".join(got) == expected + b"last\n"


async def test_a_follower_does_not_hear_of_the_next_file_after_the_container_s_end(tmp_path: Path) -> None:
    """The kubelet's waitLogs asks whether the container runs before it looks at what happened to the file."""
    log = a_small_log(tmp_path)
    pieces = log.read(LogOptions(follow=True))
    log.write("stdout", b"first\n")
    got = [await anext(pieces)]
    at_its_end = asyncio.ensure_future(anext(pieces))
    await asyncio.sleep(0)
    log.write("stdout", b"second\n")
    got.append(await at_its_end)
    await rotate(log, tmp_path)
    log.write("stdout", b"in the next file\n")
    log.close()
    got += [piece async for piece in pieces]
    assert b"".join(got) == b"first\nsecond\n" + b"x" * 200 + b"\n"


async def test_a_follower_that_is_still_in_its_first_file_does_not_hear_of_the_next(tmp_path: Path) -> None:
    """As the kubelet's does not: it looks for new files from the first end of file on."""
    log = a_small_log(tmp_path)
    log.write("stdout", b"first\n")
    pieces = log.read(LogOptions(follow=True))
    got = [await anext(pieces)]
    await rotate(log, tmp_path)
    log.write("stdout", b"in the next file\n")
    log.close()
    got += [piece async for piece in pieces]
    assert b"".join(got) == b"first\n" + b"x" * 200 + b"\n"
    assert await read(log) == b"in the next file\n"


async def test_a_follower_sees_all_and_ends(tmp_path: Path) -> None:
    log = ContainerLog(tmp_path / "log", max_size=10 * 2**20)
    follower = asyncio.create_task(read(log, follow=True))
    for i in range(50):
        log.write("stdout", f"{i}\n".encode())
        await asyncio.sleep(0)
    log.close()
    assert await asyncio.wait_for(follower, 60) == b"".join(f"{i}\n".encode() for i in range(50))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(st.lists(st.binary(max_size=40000), max_size=6))
def test_what_is_written_is_what_is_read(tmp_path: Path, chunks: list[bytes]) -> None:
    async def round_trip() -> bytes:
        (tmp_path / "log").unlink(missing_ok=True)
        log = ContainerLog(tmp_path / "log", max_size=10 * 2**20)
        for chunk in chunks:
            log.write("stdout", chunk)
        log.close()
        return await read(log)

    assert asyncio.run(round_trip()) == b"".join(chunks)
