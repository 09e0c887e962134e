"""What to do about a pod that does not start, from the words that its error quotes."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_gpu_provider.training.wait.pod_wait import PodSnapshot
from airflow_gpu_provider.training.wait.start_advice import how_to_start
from tests.unit.training.test_pod_end import pod, running, waiting
from tests.unit.training.test_pod_wait import WAIT, at, event, scheduled

CREATING = waiting("ContainerCreating")
SANDBOX, ATTACH, MOUNT = "FailedCreatePodSandBox", "FailedAttachVolume", "FailedMount"
SETUP = 'MountVolume.SetUp failed for volume "data" : '
HELD = 'Multi-Attach error for volume "pvc-1" Volume is already exclusively attached to one node'


def advice(state: dict[str, Any], *told: tuple[str, str], **status: Any) -> str:
    events = [event(reason, message, seconds=when) for when, (reason, message) in enumerate(told)]
    fix, _ = how_to_start(pod(state, phase="Pending", conditions=(scheduled(0),), **status), events)
    return fix


@pytest.mark.parametrize(
    ("reason", "message", "says"),
    [
        (
            SANDBOX,
            'plugin type="aws-cni" failed (add): failed to assign an IP address to container',
            "address",
        ),
        (SANDBOX, "unable to allocate IP via local cilium agent: [POST /ipam][502] range is full", "address"),
        (SANDBOX, "failed to allocate for range 0: no IP addresses available in range set: 10.0.0.1-9", "address"),
        (
            SANDBOX,
            'plugin type="azure-vnet" failed (add): AllocateIPConfig failed: not enough IPs available',
            "address",
        ),
        (SANDBOX, "branch ENI not ready: InsufficientCidrBlocks", "address"),
        (SANDBOX, 'failed to get sandbox image "pause:3.5": failed to pull image: 401 Unauthorized', "pull it"),
        (
            SANDBOX,
            'failed to pull image "registry.k8s.io/pause:3.9": dial tcp: i/o timeout',
            "reach the image's registry",
        ),
        (
            SANDBOX,
            "failed to start sandbox: mkdir /run/containerd/x: no space left on device",
            "disk of node n1 is full",
        ),
        (SANDBOX, 'failed to get sandbox runtime: no runtime for "nvidia" is configured', "runtimeClassName"),
        (SANDBOX, 'plugin type="calico" failed (add): error getting ClusterInformation', "network plugin"),
        ("NetworkNotReady", "network is not ready: cni plugin not initialized", "network plugin"),
        (SANDBOX, "rpc error: code = DeadlineExceeded desc = context deadline exceeded", "cannot prepare the pod"),
        (ATTACH, HELD, "Another node"),
        (ATTACH, "could not attach volume: api error AttachmentLimitExceeded: limit exceeded", "larger"),
        (ATTACH, "AttachVolume.Attach failed: UnauthorizedOperation: ec2:AttachVolume", "its driver's permissions"),
        (MOUNT, f'{SETUP}configmap "train-cfg" not found', "Create what it names"),
        (
            MOUNT,
            'MountVolume.MountDevice failed for volume "pvc-1" : rpc error: code = Internal desc = Failed to find'
            ' device path /dev/xvdaa. nvme path "/dev/disk/by-id/nvme-vol1" not found',
            "does not appear on node n1",
        ),
        (MOUNT, f"{SETUP}failed to sync configmap cache: timed out waiting for the condition", "from the API server"),
        (MOUNT, f"{SETUP}hostPath type check failed: /data is not a directory", "Create what it names"),
        (
            MOUNT,
            f'{SETUP}Could not mount "bucket": Mount failed: Client error 1: Forbidden: Access Denied',
            "its server",
        ),
        (MOUNT, f"{SETUP}mount.lustre: mount fs at /x failed: Input/output error Is the MGS running?", "its server"),
        (MOUNT, f"{SETUP}references non-existent secret key: token", "Create what it names"),
        (MOUNT, "driver name efs.csi.aws.com not found in the list of registered CSI drivers", "tolerate the pool's"),
        (MOUNT, f"{SETUP}mount failed: exit status 32: mount.nfs4: Connection timed out", "its server"),
        (MOUNT, f"{SETUP}mount.nfs4: access denied by server while mounting 127.0.0.1:/", "its server"),
        (MOUNT, f"{SETUP}rpc error: code = Internal desc = format of disk failed", "its driver on node n1"),
        ("FailedPrepareDynamicResources", "NodePrepareResources failed for claim ml/gpu", "DRA driver"),
        ("BackOff", "Back-off restarting failed container istio-proxy in pod train-x_ml(1)", "container istio-proxy"),
        ("BackOff", 'Back-off pulling image "train:1"', "reach the image's registry"),
        ("Unhealthy", "Startup probe failed: connection refused", "startup probe"),
        ("NodeNotReady", "Node is not ready", "Node n1 stopped answering"),
        ("Pulling", 'Pulling image "train:1"', "a smaller image"),
        ("DNSConfigForming", "Nameserver limits were exceeded", "a smaller image"),
    ],
)
def test_an_event_s_cause(reason: str, message: str, says: str) -> None:
    assert says in advice(CREATING, (reason, message))


@pytest.mark.parametrize(
    ("reason", "message", "says"),
    [
        ("CreateContainerConfigError", 'configmap "training" not found', "Create what it names"),
        ("CreateContainerConfigError", "container has runAsNonRoot and image will run as root", "runAsUser"),
        ("CreateContainerError", "context deadline exceeded", "too slow"),
        ("CreateContainerError", 'failed to reserve container name "b": name "b" is reserved for "1f"', "too slow"),
        ("CreateContainerError", 'failed to generate container "1f" spec: no command specified', "set cmds"),
        ("CreateContainerError", 'the container name "k8s_base" is already in use by ab', "too slow"),
        ("CreateContainerError", "Kubelet may be retrying requests that are timing out in CRI-O", "too slow"),
        ("CreateContainerError", "no running task found: task ab not found: not found", "lost the pod's sandbox"),
        ("CreateContainerConfigError", "failed to sync secret cache: timed out waiting", "from the API server"),
        ("CreateContainerError", "failed to prepare subPath for volumeMount", "Correct what it names"),
        ("CreateContainerError", "something new", "Node n1 cannot create the container"),
        ("RunContainerError", "nvidia-container-cli: initialization error: nvml error", "driver pods"),
        ("ImagePullBackOff", "no such host", "reach the image's registry"),
    ],
)
def test_what_a_container_waits_for(reason: str, message: str, says: str) -> None:
    assert says in advice(waiting(reason, message), ("NodeNotReady", "Node is not ready"))


def test_a_container_that_the_task_s_own_waits_for_is_named() -> None:
    loops = waiting("CrashLoopBackOff", "back-off 5m0s restarting failed container", name="fetch")
    assert "log of container fetch" in advice(waiting("PodInitializing"), initContainerStatuses=[loops])
    assert "log of container fetch" in advice(waiting("PodInitializing"), initContainerStatuses=[running("fetch")])


def test_the_newest_cause_that_still_stands_counts() -> None:
    summary = "Unable to attach or mount volumes: unmounted volumes=[data]: timed out waiting for the condition"
    attached, timed_out = ("SuccessfulAttachVolume", "succeeded"), (MOUNT, f"{SETUP}timed out")
    assert "Another node" in advice(CREATING, (ATTACH, HELD), (MOUNT, summary), ("NodeNotReady", "not ready"))
    assert "its server" in advice(CREATING, (ATTACH, HELD), attached, timed_out)
    assert "smaller" in advice(CREATING, (ATTACH, HELD), attached)
    assert "smaller" in advice(CREATING, timed_out, ("Pulling", 'Pulling image "train:1"'))


def test_the_event_that_the_advice_is_from_is_quoted() -> None:
    others = [event("DNSConfigForming", f"limits {at}", seconds=10 + at, type="Warning") for at in range(5)]
    cause = event(MOUNT, f'{SETUP}configmap "train-cfg" not found', seconds=5, type="Warning")
    starting = pod(CREATING, phase="Pending", conditions=(scheduled(0),))
    error = WAIT.step(PodSnapshot(pod=starting, events=(cause, *others)), at(400)).error
    assert error is not None
    assert 'configmap "train-cfg" not found' in error.what
    assert error.fix.startswith("Create what it names")
