"""Whatever a pod writes, Airflow's database takes the event, the XComs and the Leases that come of it."""

from __future__ import annotations

import json
import os
from typing import Any

import msgspec
from airflow.models.taskinstance import TaskInstance
from airflow.models.xcom import XComModel
from airflow.sdk.bases.xcom import BaseXCom
from airflow.sdk.serde import serialize
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.dry_nights.database import Database
from tests.dry_nights.foreign_pod import Writes, leases, watched, xcoms

EXAMPLES = int(os.environ.get("FOREIGN_EXAMPLES", "60"))
"""How many pods `make test` has write; `make foreign` has 10,000, each time others."""

# What JSON, JSONB, MessagePack, CSV, terminals and patterns on log lines have stumbled over.
_PIECES = st.sampled_from(
    [
        b"\x00", b"\\u0000", b"\\ud800", b"\xed\xa0\x80", b"\xff", b"\x1b[2J", b"\x1b]8;;http://x\x07", b"\xe2\x80\xae",
        b"NaN", b"-Infinity", b"1e999", b"9" * 400, b"9" * 5000, b"[" * 2000, b"{\"a\":", b"]", b"}", b'"', b",", b", ",
        b"\n", b"\r", b" " * 300, b"1.", b"99, 1000, 80, 700", b"0, 0, 50, 700", b"[N/A]", b"x" * 140_000,
        b"NVRM: Xid (PCI:0000:00:1e): 79, GPU has fallen off the bus.", b"NVRM: Xid (PCI:0): ",
        b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate ", b"RuntimeError: CUDA error: ", b"Traceback",
        b"Epoch 3: 17%|#  | 170/1000 [00:10<00:50, 16.60it/s]", b"0" * 900, b"step ", b"/", b"it/s",
    ]
)  # fmt: skip
foreign = st.lists(_PIECES | st.binary(max_size=20), max_size=8).map(b"".join)

# As an API server sends them: JSON in UTF-8, which may hold U+0000, and no half of a pair.
texts = foreign.map(lambda some: some.decode(errors="replace"))
writes = st.builds(
    Writes,
    result=foreign | st.recursive(st.none() | st.floats() | texts, lambda of: st.lists(of) | st.dictionaries(texts, of))
    .map(json.dumps).map(str.encode),
    gpus=st.lists(foreign | st.just(b"100, 1000, 70, 700\n"), max_size=4),
    log=foreign,
    message=texts,
    reason=st.just("Error") | texts,
    exit_code=st.sampled_from([0, 0, 1, 127, 137]),
    hangs=st.booleans(),
)  # fmt: skip


@given(written=writes, reason=texts)
@settings(
    max_examples=EXAMPLES,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
def test_what_a_pod_writes_can_be_stored_and_read_back(database: Database, written: Writes, reason: str) -> None:
    seen = watched(written)
    _keep(database, TaskInstance.next_kwargs.type, serialize({"event": seen.event}))
    for value in xcoms(seen).values():
        _keep(database, XComModel.value.type, BaseXCom.serialize_value(value))
    for lease in leases(seen, reason):
        assert json.loads(json.dumps(lease, allow_nan=False, ensure_ascii=False).encode()) == lease


def _keep(database: Database, column: Any, value: Any) -> None:
    """Hold that a value passes between Airflow's processes, and through a column of its database."""
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(value)) == value
    assert database.echo(value, column) == value
