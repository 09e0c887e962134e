"""Whatever a pod writes, Airflow's database takes the event, the XComs and the Leases that come of it."""

from __future__ import annotations

import json
import time
from typing import Any

import msgspec
import pytest
from airflow.models.taskinstance import TaskInstance
from airflow.models.xcom import XComModel
from airflow.sdk.bases.xcom import BaseXCom
from airflow.sdk.serde import serialize
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.dry_nights.database import Database
from tests.dry_nights.foreign_pod import Writes, leases, watched, xcoms

# What JSON, JSONB, MessagePack, CSV, terminals and patterns on log lines have stumbled over.
_PIECES = st.sampled_from(
    [
        b"\x00", b"\\u0000", b"\\ud800", b"\xed\xa0\x80", b"\xff", b"\x1b[2J", b"\x1b]8;;http://x\x07", b"\xe2\x80\xae",
        b"NaN", b"-Infinity", b"1e999", b"9" * 400, b"9" * 5000, b"[" * 2000, b"{\"a\":", b"]", b"}", b'"', b",", b", ",
        b"\n", b"\r", b" " * 300, b"1.", b"99, 1000, 80, 700", b"0, 0, 50, 700", b"[N/A]",
        b"NVRM: Xid (PCI:0000:00:1e): 79, GPU has fallen off the bus.", b"NVRM: Xid (PCI:0): ",
        b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate ", b"RuntimeError: CUDA error: ", b"Traceback",
        b"Epoch 3: 17%|#  | 170/1000 [00:10<00:50, 16.60it/s]", b"0" * 900, b"step ", b"/", b"it/s",
    ]
)  # fmt: skip
_FIELD = b"x" * 140_000
"""What csv refuses. One object, not many: hypothesis keeps what it has drawn."""
foreign = st.lists(_PIECES | st.binary(max_size=20), max_size=8).map(b"".join)

# As an API server sends them: JSON in UTF-8, which may hold U+0000, and no half of a pair.
texts = foreign.map(lambda some: some.decode(errors="replace"))
writes = st.builds(
    Writes,
    result=foreign | st.recursive(st.none() | st.floats() | texts, lambda of: st.lists(of) | st.dictionaries(texts, of))
    .map(json.dumps).map(str.encode),
    gpus=st.lists(foreign | st.sampled_from([b"100, 1000, 70, 700\n", _FIELD]), max_size=4),
    log=foreign,
    message=texts,
    reason=st.just("Error") | texts,
    exit_code=st.sampled_from([0, 0, 1, 127, 137]),
    hangs=st.booleans(),
)  # fmt: skip


quickly = settings(deadline=None, max_examples=60, suppress_health_check=list(HealthCheck))
at_length = settings(quickly, max_examples=10_000)


@given(written=writes, reason=texts)
@quickly
def test_what_a_pod_writes_can_be_stored_and_read_back(database: Database, written: Writes, reason: str) -> None:
    _check(database, written, reason)


@pytest.mark.nightly
@pytest.mark.timeout(7200)
@given(written=writes, reason=texts)
@at_length
def test_what_ten_thousand_pods_write_can_be_stored(database: Database, written: Writes, reason: str) -> None:
    _check(database, written, reason)


def _check(database: Database, written: Writes, reason: str) -> None:
    seen = watched(written)
    _keep(database, TaskInstance.next_kwargs.type, serialize({"event": seen.event}))
    for value in xcoms(seen).values():
        _keep(database, XComModel.value.type, BaseXCom.serialize_value(value))
    for lease in leases(seen, reason):
        assert json.loads(json.dumps(lease, allow_nan=False, ensure_ascii=False).encode()) == lease


def _keep(database: Database, column: Any, value: Any) -> None:
    """Hold that a value passes between Airflow's processes, and through a column of its database."""
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(value)) == value
    assert _alike(database.echo(value, column)) == _alike(value)


def _alike(value: Any) -> Any:
    """Return it without integers: of a large float, JSONB returns all digits."""
    return json.loads(json.dumps(value), parse_int=float)


@pytest.mark.parametrize(
    "piece", [b"9", b" \r", b"[", b"\x1b", b"\x1b]", b"\x00", b'"', b", ", b"1/", b"9.", b"\xff", b"a b\n"]
)
def test_cpu_grows_with_the_bytes_and_not_with_their_square(piece: bytes) -> None:
    quarters, megabytes = ([_cpu(each) for each in _in_each_place(piece, size)] for size in (2**18, 2**20))
    for quarter, megabyte in zip(quarters, megabytes, strict=True):
        assert megabyte < 8 * max(quarter, 0.02), "four times the bytes; their square would be 16 times"


def _in_each_place(piece: bytes, size: int) -> tuple[Writes, ...]:
    """Return what a pod writes, with so many bytes in its result, in what nvidia-smi prints, or in log and message."""
    large = piece * (size // len(piece))
    return (
        Writes(result=large, exit_code=1),
        Writes(gpus=[large, b"1, 1, 1, 1"], exit_code=1),
        Writes(log=large.replace(b"\n", b" "), message=large.decode(errors="replace"), exit_code=1),
    )


def _cpu(writes: Writes) -> float:
    began = time.process_time()
    xcoms(watched(writes))
    return time.process_time() - began
