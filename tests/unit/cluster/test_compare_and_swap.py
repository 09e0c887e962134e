"""An object that somebody else wrote first is read again; a bound ends that."""

import pytest

from airflow_gpu_provider.cluster import compare_and_swap
from airflow_gpu_provider.cluster.api_errors import ObjectChanged, ObjectNotFound
from airflow_gpu_provider.cluster.compare_and_swap import update


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare_and_swap, "_PAUSE", lambda _: 0.0)


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


def test_an_object_that_is_gone_is_tried_again_only_where_it_is_to_be_created() -> None:
    gone = Versions(conflicts=1, error=ObjectNotFound)
    with pytest.raises(ObjectNotFound):
        update(gone.read, gone.write)
    again = Versions(conflicts=1, error=ObjectNotFound)
    assert update(again.read, again.write, again_on=(ObjectChanged, ObjectNotFound)) == "version 1"
