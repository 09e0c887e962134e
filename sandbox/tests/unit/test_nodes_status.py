"""Phases and conditions of pods, from their containers' states."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_sandbox.nodes.status import (
    ContainerRecord,
    PodFacts,
    Verdict,
    initialized,
    phase_of,
    pod_status,
    rejected,
    terminated,
    waiting,
)

RUNNING = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
WAITING = waiting("ContainerCreating")


def ended(code: int) -> dict[str, Any]:
    reason = "Error" if code else "Completed"
    return terminated(code, reason, started="a", finished="b", container_id="c")


def pod(
    *names: str, inits: tuple[str, ...] = (), policy: str = "Never", sidecars: tuple[str, ...] = ()
) -> dict[str, Any]:
    init_specs = [{"name": n} | ({"restartPolicy": "Always"} if n in sidecars else {}) for n in inits]
    return {"spec": {"restartPolicy": policy, "containers": [{"name": n} for n in names], "initContainers": init_specs}}


def record(name: str, state: dict[str, Any], **fields: Any) -> ContainerRecord:
    return ContainerRecord(name, "image", state=state, **fields)


@pytest.mark.parametrize(
    ("policy", "states", "phase"),
    [
        ("Never", [WAITING], "Pending"),
        ("Never", [RUNNING], "Running"),
        ("Never", [RUNNING, WAITING], "Pending"),
        ("Never", [RUNNING, ended(1)], "Running"),
        ("Never", [ended(0), ended(0)], "Succeeded"),
        ("Never", [ended(0), ended(1)], "Failed"),
        ("OnFailure", [ended(0), ended(1)], "Running"),
        ("OnFailure", [ended(0)], "Succeeded"),
        ("Always", [ended(0)], "Running"),
    ],
)
def test_phases(policy: str, states: list[dict[str, Any]], phase: str) -> None:
    names = [f"c{i}" for i in range(len(states))]
    records = [record(name, state) for name, state in zip(names, states, strict=True)]
    assert phase_of(pod(*names, policy=policy), records, all_stopped=False) == phase


def test_a_crash_looping_pod_is_running() -> None:
    crashing = record("c", waiting("CrashLoopBackOff"), last_state=ended(1))
    assert phase_of(pod("c", policy="Always"), [crashing], all_stopped=False) == "Running"


def test_init_containers_hold_the_phase() -> None:
    spec = pod("c", inits=("i",))
    init = record("i", RUNNING, is_init=True)
    assert phase_of(spec, [init, record("c", WAITING)], all_stopped=False) == "Pending"
    init.state = ended(1)
    assert phase_of(spec, [init, record("c", WAITING)], all_stopped=False) == "Failed"
    again = pod("c", inits=("i",), policy="OnFailure")
    assert phase_of(again, [init, record("c", WAITING)], all_stopped=False) == "Pending"


def test_a_sidecar_neither_fails_nor_finishes_a_pod() -> None:
    spec = pod("c", inits=("s",), sidecars=("s",))
    side = record("s", RUNNING, is_init=True, is_sidecar=True, started=True)
    assert phase_of(spec, [side, record("c", ended(0))], all_stopped=False) == "Running"
    side.state, side.started = ended(137), False
    assert phase_of(spec, [side, record("c", ended(0))], all_stopped=True) == "Succeeded"


def test_initialized() -> None:
    assert initialized([record("c", WAITING)])
    assert not initialized([record("i", RUNNING, is_init=True)])
    assert initialized([record("i", ended(0), is_init=True)])
    assert not initialized([record("s", RUNNING, is_init=True, is_sidecar=True)])
    assert initialized([record("s", RUNNING, is_init=True, is_sidecar=True, started=True)])


def facts(**fields: Any) -> PodFacts:
    return PodFacts(host_ip="127.0.0.1", pod_ip="127.1.0.1", start_time="t", **fields)


def test_a_final_phase_waits_until_all_containers_have_stopped() -> None:
    spec, records = pod("a", "b"), [record("a", ended(0)), record("b", ended(0))]
    before = {"phase": "Running"}
    assert pod_status(spec, records, facts(), previous=before, now="n")["phase"] == "Running"
    assert pod_status(spec, records, facts(all_stopped=True), previous=before, now="n")["phase"] == "Succeeded"


def test_a_verdict_says_why() -> None:
    verdict = Verdict(phase="Failed", reason="DeadlineExceeded", message="too long")
    spec, records = pod("a"), [record("a", ended(0))]
    status = pod_status(spec, records, facts(all_stopped=True, verdict=verdict), previous={}, now="n")
    assert (status["phase"], status["reason"], status["message"]) == ("Failed", "DeadlineExceeded", "too long")
    early = pod_status(spec, [record("a", RUNNING)], facts(verdict=verdict), previous={"phase": "Running"}, now="n")
    assert early["phase"] == "Running"
    assert "reason" not in early


def test_a_pod_that_never_ran_fails_when_it_is_stopped() -> None:
    status = pod_status(pod("a"), [record("a", WAITING)], facts(all_stopped=True), previous={}, now="n")
    assert status["phase"] == "Failed"


def test_conditions_keep_their_time_until_they_change() -> None:
    spec, one = pod("a"), record("a", RUNNING)
    first = pod_status(spec, [one], facts(sandbox_ready=True), previous={}, now="1")
    one.ready = True
    second = pod_status(spec, [one], facts(sandbox_ready=True), previous=first, now="2")
    times = {c["type"]: (c["status"], c["lastTransitionTime"]) for c in second["conditions"]}
    assert times["Initialized"] == ("True", "1")
    assert times["PodReadyToStartContainers"] == ("True", "1")
    assert times["Ready"] == ("True", "2")


def test_readiness_gates() -> None:
    spec = pod("a")
    spec["spec"]["readinessGates"] = [{"conditionType": "example.com/ok"}]
    ready = record("a", RUNNING, ready=True, started=True)
    status = {c["type"]: c for c in pod_status(spec, [ready], facts(), previous={}, now="n")["conditions"]}
    assert status["ContainersReady"]["status"] == "True"
    assert (status["Ready"]["status"], status["Ready"]["reason"]) == ("False", "ReadinessGatesNotReady")


def test_a_rejected_pod() -> None:
    status = rejected(pod("a"), "OutOfcpu", "no room", start_time="t")
    assert (status["phase"], status["reason"], status["message"]) == ("Failed", "OutOfcpu", "Pod was rejected: no room")


STATES = st.sampled_from([WAITING, RUNNING, ended(0), ended(1)])


@given(st.lists(STATES, min_size=1, max_size=4), st.sampled_from(["Never", "OnFailure", "Always"]))
def test_a_pod_whose_containers_all_stopped_is_over(states: list[dict[str, Any]], policy: str) -> None:
    names = [f"c{i}" for i in range(len(states))]
    records = [record(n, s) for n, s in zip(names, states, strict=True)]
    status = pod_status(pod(*names, policy=policy), records, facts(all_stopped=True), previous={}, now="n")
    assert status["phase"] in ("Succeeded", "Failed")
    assert (status["phase"] == "Succeeded") == all(s == ended(0) for s in states)
