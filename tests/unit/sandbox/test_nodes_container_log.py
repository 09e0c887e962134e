"""A container's log, written and read."""

from __future__ import annotations

import asyncio
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_gpu_provider.sandbox.nodes.container_log import ContainerLog, LogOptions


async def read(log: ContainerLog, **options: object) -> bytes:
    return b"".join([piece async for piece in log.read(LogOptions(**options))])  # type: ignore[arg-type]


async def test_lines_appear_when_they_are_whole(tmp_path: Path) -> None:
    log = ContainerLog(tmp_path / "log")
    log.write("stdout", b"one\ntw")
    assert await read(log) == b"one\n"
    log.write("stdout", b"o\nthree")
    assert await read(log) == b"one\ntwo\n"
    log.close()
    assert await read(log) == b"one\ntwo\nthree"


async def test_tails_and_limits(tmp_path: Path) -> None:
    log = ContainerLog(tmp_path / "log")
    log.write("stdout", b"a\nb\nc\nd")
    log.close()
    assert await read(log, tail_lines=2) == b"c\nd"
    assert await read(log, tail_lines=0) == b""
    assert await read(log, limit_bytes=3) == b"a\nb"
    assert log.tail(2, 100) == "c\nd"
    assert log.tail(80, 2) == "\nd"


async def test_a_very_long_line_is_one_line(tmp_path: Path) -> None:
    log = ContainerLog(tmp_path / "log")
    log.write("stdout", b"first\n" + b"x" * 50000 + b"\nlast\n")
    assert await read(log, tail_lines=2) == b"x" * 50000 + b"\nlast\n"


async def test_a_follower_sees_all_and_ends(tmp_path: Path) -> None:
    log = ContainerLog(tmp_path / "log")
    follower = asyncio.create_task(read(log, follow=True))
    for i in range(50):
        log.write("stdout", f"{i}\n".encode())
        await asyncio.sleep(0)
    log.close()
    assert await asyncio.wait_for(follower, 5) == b"".join(f"{i}\n".encode() for i in range(50))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(st.lists(st.binary(max_size=40000), max_size=6))
def test_what_is_written_is_what_is_read(tmp_path: Path, chunks: list[bytes]) -> None:
    async def round_trip() -> bytes:
        (tmp_path / "log").unlink(missing_ok=True)
        log = ContainerLog(tmp_path / "log")
        for chunk in chunks:
            log.write("stdout", chunk)
        log.close()
        return await read(log)

    assert asyncio.run(round_trip()) == b"".join(chunks)
