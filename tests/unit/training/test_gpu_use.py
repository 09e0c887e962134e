"""What nvidia-smi says of a container's GPUs, summed up; and for how long they have not computed."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_gpu_provider.errors import PoolSpecError
from airflow_gpu_provider.operators.gpu_pod import GpuPodOperator
from airflow_gpu_provider.training.wait.attempt_wait import WaitOutcome
from airflow_gpu_provider.training.wait.gpu_use import (
    GPUS_KEPT,
    GpuUse,
    GpuWatching,
    Idleness,
    Reading,
    Sample,
    parse,
)
from airflow_gpu_provider.training.wait.pod_wait import PodWait

PERCENTS = st.integers(0, 100)
UNKNOWN = st.sampled_from(["[N/A]", "[Not Supported]", "[Unknown Error]", "[GPU requires reset]", "", "nan", "-1"])


@pytest.mark.parametrize(
    ("said", "percent", "is_idle", "memory_mib", "power_w"),
    [
        ("38, 72704, 410.52, 700.00\n", 38, False, 72704, 410.52),
        ("0, 1, 16.00, 72.00\n0, 3, 17.00, 72.00\n", 0, True, 3, 33),
        ("0, 1, 16.00, 72.00\n50, 3, [N/A], [N/A]\n", 25, False, 3, None),
        ("0, 1, 16.00, 72.00\n[Unknown Error], 3, 5, 72.00\n", 0, None, 3, 21),
        ("[N/A], 513, [Not Supported], [N/A]\n", None, None, 513, None),
        ("[N/A], [Insufficient Permissions], 90.1, 300.00\n", None, None, None, 90.1),
    ],
)
def test_what_nvidia_smi_says(
    said: str, percent: float | None, is_idle: bool | None, memory_mib: float | None, power_w: float | None
) -> None:
    sample = parse(said)
    assert sample is not None
    assert (sample.percent, sample.is_idle, sample.memory_mib, sample.power_w) == (
        percent,
        is_idle,
        memory_mib,
        power_w,
    )


def test_each_gpu_has_its_own_reading() -> None:
    sample = parse("120, 1, 16.00, 72.00\n50, [N/A], [N/A], [N/A]\n")
    assert sample is not None
    assert sample.gpus == (
        Reading(percent=100, memory_mib=1, power_w=16, limit_w=72),
        Reading(percent=50, memory_mib=None, power_w=None, limit_w=None),
    )


@given(st.text(st.sampled_from('0123456789.,\n -infaNexE\0"٣'), max_size=200) | st.integers(10**9, 10**400).map(str))
def test_whatever_it_prints_adds_up_to_finite_numbers(said: str) -> None:
    use = GpuUse()
    for text in (said, ", ".join([said] * 4), f"{said}\n" * 300):
        if sample := parse(text):
            assert len(sample.gpus) <= 256
            use = use.plus(sample).plus(sample)
    assert json.dumps([use.to_record(), use.to_json()], allow_nan=False)
    assert use.in_words()


@pytest.mark.parametrize("said", ["No devices were found\n", 'Field "power.draw" is not a valid field to query.\n', ""])
def test_no_line_for_a_gpu_is_no_sample(said: str) -> None:
    assert parse(said) is None


def test_what_each_gpu_did_is_kept_by_rank() -> None:
    use = GpuUse()
    for rank, said in (
        (0, "90, 7, 300, 400\n2, 5, 60, 400\n"),
        (10, "80, 9, 200, 400\n"),
        (2, "[N/A], 1, [N/A], [N/A]\n"),
    ):
        sample = parse(said)
        assert sample is not None
        use = use.plus(sample, rank)
    told = GpuUse.from_record(use.to_record()).to_json()["gpus"]
    assert [
        (each["rank"], each["gpu"], each["mean"], each["power_w_mean"], each["power_limit_w"]) for each in told
    ] == [
        (0, 0, 90, 300, 400),
        (0, 1, 2, 60, 400),
        (2, 0, None, None, None),
        (10, 0, 80, 200, 400),
    ]
    assert "of the time, each between 2 and 90 %" in use.in_words()


@pytest.mark.parametrize(
    ("answer", "spun"),
    [
        ("99, 1, 130, 400", True),
        ("99, 1, 150, 400", False),
        ("90, 1, 130, 400", False),
        ("100, 527, 122.61, 700.00", True),  # an H200: one block of threads that spins
        ("100, 527, 125.52, 700.00", True),  # 132 of them
        ("99, 883, 689.09, 700.00", False),  # a product of matrices
        ("14, 597, 122.69, 700.00", False),  # example_dags/train_digits
        ("99, 1, 130, [N/A]", None),
        ("99, 1, [N/A], 400", None),
        ("[N/A], 1, 130, 400", None),
    ],
)
def test_a_gpu_that_was_busy_throughout_at_a_draw_near_idle_is_told(answer: str, spun: bool | None) -> None:
    sample = parse(answer)
    assert sample is not None
    (told,) = GpuUse().plus(sample).to_json()["gpus"]
    assert told["spun"] is spun


def test_a_run_of_many_gpus_keeps_the_first_ones() -> None:
    sample = parse("50, 1, 300, 400\n" * 8)
    assert sample is not None
    use = GpuUse()
    for rank in range(12):
        use = use.plus(sample, rank)
    assert len(use.gpus) == GPUS_KEPT
    assert use.samples == 12


@given(st.lists(st.lists(PERCENTS | UNKNOWN, min_size=1, max_size=8), max_size=30))
def test_mean_is_that_of_what_the_gpus_said(polls: list[list[int | str]]) -> None:
    use, means = GpuUse(), []
    for gpus in polls:
        sample = parse("".join(f"{each}, 7, 1, 9\n" for each in gpus))
        assert sample is not None
        use = use.plus(sample)
        if known := [each for each in gpus if isinstance(each, int)]:
            means.append(sum(known) / len(known))
        assert not sample.is_idle or all(each == 0 for each in gpus)
    told = GpuUse.from_record(use.to_record()).to_json()
    assert told["samples"] == len(means)
    if means:
        assert told["mean"] == pytest.approx(sum(means) / len(means), abs=0.051)
        assert told["max"] == pytest.approx(max(means), abs=0.051)
        assert told["computed_fraction"] == pytest.approx(sum(means) / len(means) / 100, abs=0.00051)
    else:
        assert told["mean"] is told["max"] is told["computed_fraction"] is None


def test_in_words() -> None:
    use = GpuUse().plus(Sample((Reading(percent=38, memory_mib=72704, power_w=None, limit_w=None),)))
    said = "the GPUs computed 38 % of the time, with at most 71 GiB of a GPU's memory in use (1 sample)"
    assert use.in_words() == said
    assert use.to_json()["power_w_mean"] is None


@given(st.lists(st.tuples(st.floats(0.1, 1e3), st.sampled_from([True, False, None]))), st.floats(0.1, 1e4))
def test_idle_for_so_long_only_by_samples_in_a_row(samples: list[tuple[float, bool | None]], long: float) -> None:
    idleness, at, row = Idleness(), 0.0, []
    for step, is_idle in samples:
        at += step
        idleness.take(is_idle, at)
        row = [*row, at] if is_idle else []
        assert idleness.lasts(long) is (bool(row) and row[-1] - row[0] >= long)
        assert not idleness.lasts(None)


def test_earlier_record_asks_nothing() -> None:
    record = {
        "namespace": "default",
        "name": "train",
        "uid": "1",
        "base_container": "base",
        "started": "2026-03-01T02:00:00Z",
        "schedule_seconds": 60,
        "start_seconds": 60,
        "deadline": "2026-03-01T03:00:00Z",
    }
    wait = PodWait.from_record(record)
    assert wait.gpus is None
    asks = PodWait.from_record({**record, "gpus": {"warn_seconds": 900, "end_seconds": None, "of_a_later_release": 1}})
    assert asks.gpus == GpuWatching(warn_seconds=900)
    assert PodWait.from_record(asks.to_record()) == asks
    event = {"namespace": "default", "name": "train", "uid": "u1", "saw_end": True}
    assert not WaitOutcome.from_record(event).gpu_use.is_known


@pytest.mark.parametrize(
    "given",
    [
        {"idle_gpu_timeout": 60, "utilization": False},
        {"idle_gpu_timeout": "1h"},
        {"idle_gpu_warning": -1},
    ],
)
def test_refused_when_the_dag_is_parsed(given: dict[str, object]) -> None:
    with pytest.raises(PoolSpecError, match="idle_gpu"):
        GpuPodOperator(task_id="train", **given)  # type: ignore[arg-type]
