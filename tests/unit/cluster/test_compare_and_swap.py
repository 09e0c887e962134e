"""An object that somebody else wrote first is read again; a bound ends that."""

from typing import Any

import pytest

from airflow_gpu_provider.cluster.api import leases
from airflow_gpu_provider.cluster.api.leases import update
from airflow_gpu_provider.cluster.model.refusals import ObjectChanged, ObjectNotFound


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "_PAUSE", lambda _: 0.0)


class Versions:
    """An object that changes between the first reads and their writes."""

    def __init__(self, conflicts: int, error: type[Exception] = ObjectChanged) -> None:
        self.version = 0
        self.written: list[int] = []
        self._conflicts = conflicts
        self._error = error

    def read(self) -> int:
        return self.version

    def write(self, read: int) -> str:
        self.written.append(read)
        if len(self.written) <= self._conflicts:
            self.version += 1
            raise self._error("somebody else was first")
        return f"version {read}"


def test_each_try_writes_what_was_read_for_it() -> None:
    there = Versions(conflicts=2)
    assert update(there.read, there.write) == "version 2"
    assert there.written == [0, 1, 2]


def test_the_first_try_takes_what_the_caller_has_read() -> None:
    there = Versions(conflicts=1)
    assert update(there.read, there.write, known=-1) == "version 1"
    assert there.written == [-1, 1]


def test_it_ends_with_the_conflict_after_eight_tries() -> None:
    there = Versions(conflicts=100)
    with pytest.raises(ObjectChanged, match="somebody else was first"):
        update(there.read, there.write)
    assert len(there.written) == 8


def test_an_object_that_is_gone_is_not_tried_again() -> None:
    gone = Versions(conflicts=1, error=ObjectNotFound)
    with pytest.raises(ObjectNotFound):
        update(gone.read, gone.write)


def test_a_lease_that_was_deleted_since_it_was_read_has_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    """So it is created anew, and who cannot write it in the end hears of one kind of error."""

    def deleted(_: Any, verb: str, *__: Any, **___: Any) -> Any:
        raise ObjectNotFound(f"Cannot {verb} leases.")

    monkeypatch.setattr(leases, "call", deleted)
    manifest = {"metadata": {"name": "usage-1"}, "spec": {}}
    with pytest.raises(ObjectChanged, match="usage-1 was deleted meanwhile"):
        leases.put_lease(None, manifest, {"metadata": {"resourceVersion": "1"}})  # type: ignore[arg-type]
