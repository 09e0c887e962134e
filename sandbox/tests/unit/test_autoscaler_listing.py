"""What the stand-in autoscaler waits for, in real time, before it looks at a cluster whose clock stands still."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from gpu_sandbox.autoscaler import listing
from gpu_sandbox.autoscaler.cluster import ClusterApi
from gpu_sandbox.autoscaler.listing import ClusterLists, about_to_change
from gpu_sandbox.faults import Faults
from gpu_sandbox.manual_clock import ManualClock

UNSCHEDULABLE = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
GATED = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}


def pod(uid: str, *, node: str = "", condition: dict[str, str] | None = None, ends: bool = False) -> dict[str, Any]:
    metadata = {"name": uid, "uid": uid, "namespace": "default"} | ({"deletionTimestamp": "now"} if ends else {})
    spec: dict[str, Any] = {"containers": [{"name": "main", "resources": {"requests": {"cpu": "1"}}}]}
    if node:
        spec["nodeName"] = node
    return {"metadata": metadata, "spec": spec, "status": {"conditions": [condition] if condition else []}}


def node(uid: str, *, cpus: int = 1, ready: bool = True, gpu: bool | None = None) -> dict[str, Any]:
    """`gpu` says whether the GPU of a node that has one is allocatable."""
    labels = {} if gpu is None else {"k8s.amazonaws.com/accelerator": "nvidia-l4"}
    allocatable = {"cpu": str(cpus), "pods": "110"} | ({"nvidia.com/gpu": "1"} if gpu else {})
    status = {"conditions": [{"type": "Ready", "status": str(ready)}], "allocatable": allocatable}
    return {"metadata": {"name": uid, "uid": uid, "labels": labels}, "spec": {}, "status": status}


class ControlPlane:
    """Answers one moment of the cluster after another, and goes on with the last."""

    def __init__(self, *moments: tuple[list[Any], list[Any]]) -> None:
        self._moments: Iterator[tuple[list[Any], list[Any]]] = iter(moments)
        self.lists = 0
        self.is_away = False

    def request(self, method: str, path: str) -> tuple[int, Any]:
        if self.is_away:
            raise ConnectionRefusedError
        if "events" in path:
            self.lists += 1
            self._nodes, self._pods = next(self._moments, None) or (self._nodes, self._pods)
            return 200, {"metadata": {"resourceVersion": "1"}}
        return 200, {"items": self._nodes if "/nodes?" in path else self._pods}


def looking(
    *moments: tuple[list[Any], list[Any]], faults: Faults | None = None
) -> tuple[ClusterLists, ClusterApi, Any]:
    clock, control_plane = ManualClock(), ControlPlane(*moments)
    lists = ClusterLists(control_plane, clock, faults or Faults())  # type: ignore[arg-type]
    return lists, ClusterApi(control_plane=control_plane, view=lists, clock=clock), control_plane  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("nodes", "pods", "expected"),
    [
        ([], [pod("undecided")], {"undecided"}),
        ([], [pod("waiting", condition=UNSCHEDULABLE)], set()),
        ([], [pod("gated", condition=GATED)], set()),
        ([node("n")], [pod("about to be bound", condition=UNSCHEDULABLE)], {"about to be bound"}),
        ([node("n")], [pod("there", node="n"), pod("waiting", condition=UNSCHEDULABLE)], set()),
        ([node("n")], [pod("ending", node="n", ends=True)], {"ending"}),
        ([], [pod("lost", node="gone", ends=True)], set()),
        ([node("n", ready=False)], [], {"n"}),
        ([node("n", gpu=False)], [], {"n"}),
        ([node("n", gpu=True)], [], set()),
    ],
)
def test_what_kubernetes_is_about_to_do(nodes: list[Any], pods: list[Any], expected: set[str]) -> None:
    lists, api, _ = looking((nodes, pods))
    lists.refresh()
    assert about_to_change(api.look()) == expected


def test_a_look_waits_until_it_is_done() -> None:
    waiting = pod("train", condition=UNSCHEDULABLE)
    lists, api, control_plane = looking(
        ([], [pod("train")]),
        ([], [waiting]),
        ([node("n", gpu=False)], [waiting]),
        ([node("n", gpu=True)], [waiting]),
        ([node("n", gpu=True)], [pod("train", node="n")]),
    )
    lists.settle(api.look)
    assert (control_plane.lists, [each["metadata"]["uid"] for each in api.look().pending]) == (2, ["train"])
    lists.settle(api.look)
    assert (control_plane.lists, api.look().pending) == (5, [])


def test_what_is_not_done_is_not_waited_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "_AT_ONCE", 0.0)
    lists, api, control_plane = looking(([node("n", ready=False)], []))
    lists.settle(api.look)
    before = control_plane.lists
    lists.settle(api.look)
    assert control_plane.lists == before + 1


def test_nodes_whose_gpus_a_fault_takes_away_are_not_waited_for() -> None:
    faults = Faults()
    faults.device_plugin_never_ready = True
    lists, api, control_plane = looking(([node("n", gpu=False)], []), faults=faults)
    lists.settle(api.look)
    assert control_plane.lists == 1


def test_what_is_created_while_the_clock_stands_is_born_then() -> None:
    clock, control_plane = ManualClock(), ControlPlane(([], []), ([], [pod("train")]), ([], [pod("train")]))
    lists = ClusterLists(control_plane, clock, Faults())  # type: ignore[arg-type]
    clock.loop(lists.note_what_is_new, poll=10.0, name="lists").start()
    clock.advance()
    created_at = clock.now()
    clock.advance(minutes=1)
    lists.refresh()
    assert lists.born(pod("train")) == created_at


def test_an_api_server_that_is_away_stops_a_look_and_not_the_clock() -> None:
    lists, api, control_plane = looking(([], []))
    control_plane.is_away = True
    lists.note_what_is_new()
    with pytest.raises(ConnectionRefusedError):
        lists.settle(api.look)
