"""What follows a try that ran out of GPU memory: a larger GPU is asked for, or the error says why not."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_gpu_provider.errors import BudgetExceeded, GpuOutOfMemory, GpuTooSmall, PodFailed, PoolSpecError
from airflow_gpu_provider.operators.gpu_pod import GpuPodOperator
from airflow_gpu_provider.scaling.decide.scarce_capacity import DemandChange
from airflow_gpu_provider.scaling.state.demand import DemandLease, TaskNodes
from airflow_gpu_provider.training.life import task_nodes
from airflow_gpu_provider.training.life.larger_gpu import used, with_larger_gpu
from airflow_gpu_provider.training.life.task_attempt import placement_of
from tests.unit.scaling.pools import EARLIER, LATER, NOW, node, pool, snapshot
from tests.unit.training import pod_life
from tests.unit.training.pod_life import OWNER, Life
from tests.unit.training.pod_life import nodes as nodes
from tests.unit.training.test_pod_placement import a_pod, a_pool, placed

LINE = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 22.03 GiB"
    " of which 112.64 MiB is free."
)
ERROR = GpuOutOfMemory(
    "Pod train-x: container base ended with exit code 1: it ran out of GPU memory.",
    "Lower the batch size.",
    node="node-1",
    last_lines=["step 7", LINE],
)
GOT = TaskNodes(task_id="train", map_index=-1, instance_type="g6e.xlarge")
SIBLING = TaskNodes(task_id="train", map_index=2, instance_type="p5.4xlarge")


class Demand:
    """A pool with one node, and the run's demand on it; `beaten` times somebody else is first to change that."""

    def __init__(self, lease: DemandLease | None, *, types: Any = ("g6.xlarge", "g6e.xlarge"), beaten: int = 0) -> None:
        self.lease = lease
        self.beaten = beaten
        self._spec = pool(instance_types=types)
        self.runs_on = "g6.xlarge"
        self.fails: Exception | None = None

    def snapshot(self) -> Any:
        leases = (self.lease,) if self.lease is not None else ()
        nodes = (node(1, instance_type=self.runs_on),) if self.runs_on else ()
        return snapshot(spec=self._spec, leases=leases, nodes=nodes)

    def amend(self, ask: DemandChange) -> Any:
        if self.fails is not None:
            raise self.fails
        if self.beaten:
            self.beaten -= 1
            assert self.lease is not None
            self.lease = replace(self.lease, task_nodes=(*self.lease.task_nodes, SIBLING))
        if ask.before == self.lease:
            self.lease = ask.after
        return SimpleNamespace(log_lines=("grows",), snapshot=self.snapshot())


def lease(**fields: Any) -> DemandLease:
    return DemandLease(**{"key": OWNER.key, "nodes": 2, "until": LATER, "created_at": EARLIER, **fields})


def ended(monkeypatch: pytest.MonkeyPatch, demand: Demand, *, has_next_try: bool = True, **changes: Any) -> PodFailed:
    monkeypatch.setattr(task_nodes, "open_pool", lambda *_, **__: demand)
    life = Life(gets_larger_gpu=True, **changes)
    return with_larger_gpu(ERROR, replace(life.run, has_next_try=has_next_try), life.tries.attempt)


@pytest.mark.parametrize("beaten", [0, 2])
def test_the_next_try_s_type_is_written_beside_what_siblings_have(
    monkeypatch: pytest.MonkeyPatch, beaten: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    demand = Demand(lease(), beaten=beaten)
    error = ended(monkeypatch, demand)
    assert type(error) is GpuTooSmall
    assert error.retryable
    assert "21.9 of 22.0 GiB on g6.xlarge; next: g6e.xlarge (48 GiB)" in caplog.messages
    assert error.details["next_instance_type"] == "g6e.xlarge"
    assert demand.lease is not None
    assert demand.lease.task_nodes == (*[SIBLING] * beaten, GOT)


def test_the_next_iteration_of_a_loop_begins_anew_in_place_of_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    earlier = replace(GOT, iteration=0, instance_type="p5.4xlarge", times=2)
    demand = Demand(lease(task_nodes=(earlier, SIBLING)))
    monkeypatch.setattr(pod_life, "OWNER", replace(OWNER, iteration=1))
    ended(monkeypatch, demand)
    assert demand.lease is not None
    assert demand.lease.task_nodes == (SIBLING, replace(GOT, iteration=1))
    assert demand.lease.task_nodes_of("train", -1, 0) is None
    assert DemandLease.parse(demand.lease.manifest()).task_nodes == demand.lease.task_nodes


def test_a_second_time_it_gets_a_still_larger_one_and_a_third_time_none(monkeypatch: pytest.MonkeyPatch) -> None:
    demand = Demand(lease(task_nodes=(GOT, SIBLING)), types=("g6.xlarge", "g6e.xlarge", "p5.4xlarge", "p5en.48xlarge"))
    demand.runs_on = ""  # its machine has gone meanwhile: the Lease says what it was
    error = ended(monkeypatch, demand)
    assert error.details["next_instance_type"] == "p5.4xlarge"
    assert demand.lease is not None
    assert demand.lease.task_nodes_of("train", -1) == replace(GOT, instance_type="p5.4xlarge", times=2)
    error = ended(monkeypatch, demand)
    assert type(error) is GpuOutOfMemory
    assert error.fix.startswith("It has had a larger GPU 2 times already.")


@pytest.mark.parametrize(
    ("demand", "how", "said"),
    [
        (Demand(lease()), {"has_next_try": False}, "no try left"),
        (Demand(None), {}, "No block's demand covers the task"),
        (Demand(lease(until=NOW)), {}, "No block's demand covers the task"),
        (
            Demand(lease(), types=("g6.xlarge", "g5.xlarge")),
            {},
            "no machine type with more memory per GPU than g6.xlarge",
        ),
        (Demand(lease(), beaten=9), {}, "changed again and again"),
    ],
)
def test_where_there_is_none_the_error_is_final_and_says_why(
    monkeypatch: pytest.MonkeyPatch, demand: Demand, how: dict[str, Any], said: str
) -> None:
    error = ended(monkeypatch, demand, **how)
    assert type(error) is GpuOutOfMemory
    assert not error.retryable
    assert said in error.fix
    assert error.fix.endswith("Lower the batch size.")


def test_money_that_is_used_up_gets_no_larger_one(monkeypatch: pytest.MonkeyPatch) -> None:
    demand = Demand(lease())
    demand.fails = BudgetExceeded("The run's max_cost of 50 USD is used.", "Raise it.")
    error = ended(monkeypatch, demand)
    assert type(error) is GpuOutOfMemory
    assert error.fix.startswith("A larger GPU could not be asked for: The run's max_cost of 50 USD is used.")


@pytest.mark.parametrize("gets_larger_gpu", [True, False])
def test_a_try_that_ran_out_of_memory_asks_where_that_is_wanted(
    monkeypatch: pytest.MonkeyPatch, gets_larger_gpu: bool
) -> None:
    asked: list[GpuOutOfMemory] = []
    too_small = GpuTooSmall("Too small.")
    monkeypatch.setattr(
        "airflow_gpu_provider.training.life.pod_try.with_larger_gpu",
        lambda error, *_: (asked.append(error), too_small)[1],
    )
    life = Life(gets_larger_gpu=gets_larger_gpu)

    def fails() -> None:
        raise ERROR

    life.tries.attempt.start = fails  # type: ignore[method-assign]
    with pytest.raises(GpuTooSmall if gets_larger_gpu else GpuOutOfMemory):
        life.tries.run()
    assert asked == ([ERROR] if gets_larger_gpu else [])


@pytest.mark.parametrize(
    ("larger", "gets_larger_gpu", "selected"),
    [
        ((GOT,), True, "g6e.xlarge"),
        ((SIBLING,), True, ""),
        ((GOT,), False, ""),
        ((replace(GOT, instance_type="p5.4xlarge"),), True, ""),  # the spec does not name it any more
    ],
)
def test_the_next_try_s_pod_selects_it(larger: tuple[TaskNodes, ...], gets_larger_gpu: bool, selected: str) -> None:
    life = Life(gets_larger_gpu=gets_larger_gpu)
    life.cluster.pool = pool(instance_types=("g6.xlarge", "g6e.xlarge"))
    life.cluster.gpu_health = SimpleNamespace(avoidance=lambda *_, **__: ())
    deadlines: Any = SimpleNamespace(own_demand=lease(task_nodes=larger), seconds_of_pod=lambda *_, **__: 60)
    assert placement_of(life.run, OWNER, deadlines, "ml").instance_type == selected


def test_a_placed_pod_has_its_type_beside_the_pool_s_own_labels() -> None:
    types = a_pool(instance_types=["g6.xlarge", "g6e.xlarge"])
    found = placed(a_pod(), pool=types, instance_type="g6e.xlarge")["spec"]["nodeSelector"]
    assert found == {**a_pool().node_selector, "node.kubernetes.io/instance-type": "g6e.xlarge"}


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (LINE, "21.9 of 22.0 GiB"),
        (LINE.replace("112.64 MiB", "0 bytes"), "22.0 of 22.0 GiB"),
        ("RuntimeError: CUDA error: out of memory", "too little GPU memory"),
        (LINE.replace("GiB of", "parsecs of"), "too little GPU memory"),
    ],
)
def test_how_much_was_in_use(line: str, said: str) -> None:
    assert used(GpuOutOfMemory("It ended.", last_lines=[line])) == said


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"on_gpu_out_of_memory": "bigger"}, "on_gpu_out_of_memory='bigger'"),
        ({"on_gpu_out_of_memory": "larger", "queue_name": "team-a"}, "in a Kueue queue"),
        ({"on_gpu_out_of_memory": "larger", "labels": {"kueue.x-k8s.io/queue-name": "team-a"}}, "in a Kueue queue"),
    ],
)
def test_refused_when_the_dag_is_parsed(given: dict[str, Any], said: str) -> None:
    with pytest.raises(PoolSpecError, match=said):
        GpuPodOperator(task_id="train", gpu_pool=a_pool(), **given)
