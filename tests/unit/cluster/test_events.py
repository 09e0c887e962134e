"""What the events of a pod mean in words."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from airflow_gpu_provider.cluster.model.events import ImagePull, PodEvent, seconds_of, short_scheduling_message


def event(reason: str, message: str, type: str = "Normal", **more: Any) -> PodEvent:
    raw = {
        "metadata": {"uid": "e1", "creationTimestamp": "2026-01-01T00:00:00Z"},
        "involvedObject": {"kind": "Pod", "name": "train-x", "uid": "u1"},
        "type": type,
        "reason": reason,
        "message": message,
        **more,
    }
    return PodEvent.parse(raw)


@pytest.mark.parametrize(
    ("reason", "message", "words"),
    [
        (
            "TriggeredScaleUp",
            "pod triggered scale-up: [{gpu-a 0->1 (max: 3)} {gpu-b 1->2 (max: 3)}]",
            "cluster-autoscaler grew gpu-a 0->1, gpu-b 1->2",
        ),
        (
            "NotTriggerScaleUp",
            "pod didn't trigger scale-up: 1 max node group size reached",
            "cluster-autoscaler adds no node: 1 max node group size reached",
        ),
        ("NotTriggerScaleUp", "pod didn't trigger scale-up: ", ""),
        ("Pulling", 'Pulling image "train:1"', "pulls image train:1"),
        (
            "Pulled",
            'Successfully pulled image "train:1" in 1m2.5s (1m2.5s including waiting). Image size: 8589934592 bytes.',
            "pulled image train:1 in 62 s, 8.0 GiB",
        ),
        ("Pulled", 'Successfully pulled image "train:1" in 12ms (12ms including waiting)', ""),
        ("Pulled", 'Container image "train:1" already present on machine', ""),
        ("Started", "Started container base", ""),
        ("SomethingNormal", "nobody needs this", ""),
    ],
)
def test_words(reason: str, message: str, words: str) -> None:
    assert event(reason, message).in_words == words


@pytest.mark.parametrize(
    ("by", "reason", "message", "words"),
    [
        (
            "karpenter",
            "Nominated",
            "Pod should schedule on: nodeclaim/gpu-x7k2p",
            "Karpenter has asked for a machine for it: nodeclaim/gpu-x7k2p",
        ),
        (
            "eks-auto-mode/compute",
            "Nominated",
            "Pod should schedule on: nodeclaim/gpu-x7k2p, node/i-0abc",
            "EKS Auto Mode has a node for it: nodeclaim/gpu-x7k2p, node/i-0abc",
        ),
        (
            "karpenter",
            "FailedScheduling",
            'Failed to schedule pod, incompatible with nodepool "cpu", label "team" does not have known values',
            'Karpenter brings no node: incompatible with nodepool "cpu", label "team" does not have known values',
        ),
        (
            "karpenter",
            "Disrupted",
            "Deleting the pod to accommodate the terminationTime 2026-03-01 02:00:20 +0000 UTC of the node. The pod was"
            " granted 20 seconds of grace-period of its 30 terminationGracePeriodSeconds. This bypasses the PDB of the"
            " pod and the do-not-disrupt annotation.",
            "Karpenter deletes it for the terminationGracePeriod of its node, which ends at 2026-03-01 02:00:20; that"
            " overrides do-not-disrupt",
        ),
        ("eks-auto-mode/compute", "Evicted", "Evicted pod: Drifted", "EKS Auto Mode evicts it: Drifted"),
        ("kubelet", "Disrupted", "somebody else's word", ""),
        ("default-scheduler", "FailedScheduling", "0/2 nodes are available", ""),
        (
            "cluster-autoscaler",
            "TriggeredScaleUp",
            "pod triggered scale-up: [{https://www.googleapis.com/compute/v1/projects/p/zones/z/instanceGroups/gk3-a-grp"
            " 0->1 (max: 1000)}]",
            "cluster-autoscaler grew gk3-a-grp 0->1",
        ),
    ],
)
@pytest.mark.parametrize("reporter", ["source", "reportingComponent"])
def test_words_of_who_brings_nodes(by: str, reason: str, message: str, words: str, reporter: str) -> None:
    who = {"source": {"component": by}} if reporter == "source" else {"reportingComponent": by}
    assert event(reason, message, "Warning" if reason == "FailedScheduling" else "Normal", **who).in_words == words


def test_unknown_warnings_are_told_with_their_reason() -> None:
    assert event("FailedMount", "secret not found", "Warning").in_words == "FailedMount: secret not found"


def test_images() -> None:
    assert event("Pulling", 'Pulling image "train:1"').pulling_image == "train:1"
    assert event("Pulled", 'Successfully pulled image "train:1" in 3s').pulled_image == "train:1"
    assert event("Pulled", 'Container image "train:1" already present on machine').pulled_image == "train:1"


@pytest.mark.parametrize(
    ("message", "pull"),
    [
        ('Successfully pulled image "train:1" in 1m3s', ImagePull(image="train:1", seconds=63)),
        (
            'Successfully pulled image "train:1" in 40s (2m0s including waiting). Image size: 7340032 bytes.',
            ImagePull(image="train:1", seconds=120, bytes=7340032),
        ),
        ('Container image "train:1" already present on machine', None),
    ],
)
def test_a_pull_has_its_seconds_and_its_size(message: str, pull: ImagePull | None) -> None:
    assert event("Pulled", message).pull == pull
    assert event("Failed", message).pull is None


def test_time_is_the_latest_that_the_event_has() -> None:
    old, new = "2026-01-01T00:00:01Z", "2026-01-01T00:05:00.000000Z"
    assert event("A", "").at == datetime(2026, 1, 1, tzinfo=UTC)
    assert event("A", "", lastTimestamp=old).at.second == 1
    assert event("A", "", eventTime=old, series={"lastObservedTime": new}).at.minute == 5


@pytest.mark.parametrize(("text", "seconds"), [("1.5s", 1.5), ("250ms", 0.25), ("2m", 120), ("1h1m1s", 3661)])
def test_go_durations(text: str, seconds: float) -> None:
    assert seconds_of(text) == pytest.approx(seconds)


def test_scheduling_message_without_what_helps_nobody() -> None:
    message = (
        "0/2 nodes are available: 1 Insufficient nvidia.com/gpu, 1 node(s) didn't match Pod's node affinity/selector. "
        "no new claims to deallocate, preemption: 0/2 nodes are available: 2 Preemption is not helpful for scheduling."
    )
    assert short_scheduling_message(message) == (
        "0/2 nodes are available: 1 Insufficient nvidia.com/gpu, 1 node(s) didn't match Pod's node affinity/selector"
    )
