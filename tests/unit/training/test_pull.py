"""Whether a failing pull is final: by its last cause, and by how long it lasts."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from airflow_gpu_provider.cluster.model.events import PodEvent
from airflow_gpu_provider.cluster.model.pod_state import PodState
from airflow_gpu_provider.errors import PodDeadline, PodImageError
from airflow_gpu_provider.training.wait.pod_wait import PodSnapshot
from airflow_gpu_provider.training.wait.pull import cannot_start, why_not_pulled
from tests.unit.training.test_pod_end import pod, running, waiting
from tests.unit.training.test_pod_wait import WAIT, at, event, scheduled

IMAGE = '"111122223333.dkr.ecr.us-west-2.amazonaws.com/train:1"'
RESOLVE = f"failed to pull and unpack image {IMAGE}: failed to resolve reference {IMAGE}: "
PULL = f"failed to pull and unpack image {IMAGE}: "
DIGEST = "content digest sha256:51f5: not found"
REFUSED = f"{RESOLVE}unexpected status from HEAD request to https://x/v2/train/manifests/1: 401 Unauthorized"
ABSENT = f"{RESOLVE}111122223333.dkr.ecr.us-west-2.amazonaws.com/train:1: not found"


SAID = {
    "absent": [
        "manifest for train:1 not found",
        "manifest unknown: manifest unknown",
        ABSENT,
        'Back-off pulling image "train:1": ErrImagePull: docker.io/acme/layer-mount:1: not found',
        f"{RESOLVE}unexpected status from HEAD request to https://x/v2/train/manifests/1: 404 Not Found",
        f"{PULL}no match for platform in manifest: not found",
        "choosing an image: no image found in manifest list for architecture amd64, variant, OS linux",
        "name unknown: The repository with name 'train' does not exist in the registry with id '1'",
        "Error response from daemon: unknown: artifact ml/train:1 not found",
        "manifest for acme/train:1 not found: manifest unknown: The named manifest is not known to the registry.",
        "reading manifest 1 in quay.io/acme/train: manifest unknown",
        f"{RESOLVE}unexpected status from HEAD request to https://acme.azurecr.io/v2/train/manifests/1: 404 Not Found",
        'choosing an image from manifest list: no image found in image index for architecture "arm64", OS "linux"',
    ],
    "no name": [
        "failed to parse reference: invalid reference format",
        'couldn\'t parse image name "ACME/train": invalid reference format: repository name must be lowercase',
    ],
    "unsigned": [
        "image pull failed for r.example.com/train:1 because the signature validation failed",
        "Source image rejected: A signature was required, but no signature exists",
    ],
    "refused": [
        "pull access denied, repository does not exist or may require authorization",
        f"{RESOLVE}pull access denied, repository does not exist: authorization failed: no basic auth credentials",
        REFUSED,
        f"{RESOLVE}failed to authorize: failed to fetch oauth token: unexpected status: 403 Forbidden",
        f'{RESOLVE}unexpected status: 403 Forbidden: {{"errors":[{{"code":"DENIED","message":"no"}}]}}',
        "reading manifest 1 in quay.io/acme/train: unauthorized: access to the resource is not authorized",
        "denied: Your authorization token has expired. Reauthenticate and try again.",
        "pull access denied for train: denied: User: arn:aws:sts::1:assumed-role/node/i-1 is not authorized to perform:"
        " ecr:BatchGetImage on resource: arn:aws:ecr:us-west-2:1:repository/train because no policy allows the action",
        "repository 1.dkr.ecr.us-west-2.amazonaws.com/train not found: does not exist or no pull access",
        "unauthorized: unauthorized to access repository: ml/train, action: pull: unauthorized to access repository: "
        "ml/train, action: pull",
        "unable to retrieve auth token: invalid username/password: unauthorized: incorrect username or password",
        "reading manifest latest in docker.io/crio/busybox: errors:\ndenied: requested access to the resource is denied"
        "\nunauthorized: authentication required\n",
        'denied: Permission "artifactregistry.repositories.downloadArtifacts" denied on resource "p" (or not there)',
        "unauthorized: authentication required, visit https://aka.ms/acr/authorization for more information.",
        f"{RESOLVE}unexpected status from HEAD request to https://nvcr.io/v2/nim/x/manifests/1: 402 Payment Required",
    ],
    "node": [
        f"{PULL}failed to extract layer sha256:4dc: failed to get reader from content store: {DIGEST}",
        f"{PULL}failed to unpack image on snapshotter overlayfs: {DIGEST}",
        f'{PULL}failed to prepare extraction snapshot "x": parent snapshot sha256:12ab does not exist: not found',
        f"{PULL}failed to copy: httpReadSeeker: failed open: could not fetch content descriptor sha256:a"
        " (application/vnd.docker.image.rootfs.diff.tar.gzip) from remote: not found",
        f"{PULL}failed to extract layer sha256:4dc: write /var/lib/containerd/x: no space left on device",
        f'{PULL}failed commit on ref "layer-sha256:4dc": unexpected commit digest sha256:5, expected sha256:4',
        f'{PULL}failed commit on ref "manifest-sha256:4": unexpected commit digest: failed precondition',
        f"{PULL}failed to extract layer sha256:4d: mount callback failed on /x: failed to write file: no space left on "
        "device: unknown",
        f"{PULL}failed to extract layer sha256:4d: failed to Lchown: lchown /x: invalid argument (Hint: ids): unknown",
        f"{PULL}failed to commit snapshot extract-1: failed to stat metadata: no such file or directory",
        "writing blob: adding layer: processing tar file(write /usr/lib/x: no space left on device): exit status 1",
        f"{PULL}open /var/lib/containerd/x: permission denied",
    ],
    "passing": [
        'Back-off pulling image "train:1"',
        'Back-off pulling image "access-denied:1"',
        "dial tcp: lookup registry.example on 10.0.0.2:53: no such host",
        "dial tcp 10.0.0.1:443: connect: connection refused",
        f"{RESOLVE}failed to authorize: failed to fetch anonymous token: Get https://x: dial tcp: i/o timeout",
        "read tcp 10.0.0.1:443: connection reset by peer",
        "context deadline exceeded",
        "unexpected EOF",
        "unexpected status from HEAD request: 500 Internal Server Error",
        "denied: Quota exceeded for quota metric 'Requests per project'",
        "toomanyrequests: Too Many Requests",
        f"{PULL}failed to copy: httpReadSeeker: failed open: unexpected status code https://registry-1.docker.io/v2/x: "
        "429 Too Many Requests - Server message: toomanyrequests: You have reached your pull rate limit.",
        f"{RESOLVE}failed to authorize: failed to fetch oauth token: the server said something new",
        f"{RESOLVE}unexpected status from HEAD request to https://x/v2/train/manifests/1: 503 Service Unavailable",
        "pinging container registry r.example.com: tls: failed to verify certificate: x509: unknown authority",
        "pull QPS exceeded",
        "",
    ],
}


@pytest.mark.parametrize(("message", "why"), [(each, why) for why, messages in SAID.items() for each in messages])
def test_the_last_cause_counts(message: str, why: str) -> None:
    assert why_not_pulled(message) == why


def pulling(reason: str, message: str = "") -> PodState:
    return pod(waiting(reason, message), phase="Pending", conditions=(scheduled(0),))


def failed(message: str, *, first: float, last: float | None = None) -> PodEvent:
    return PodEvent(
        uid=message,
        pod="train-x",
        pod_uid="u1",
        type="Warning",
        reason="Failed",
        message=f"Failed to pull image {IMAGE}: {message}",
        at=at(first if last is None else last),
        first_at=at(first),
    )


@pytest.mark.parametrize(
    ("reason", "message", "final_after"),
    [
        ("InvalidImageName", "couldn't parse image name", 0),
        ("ErrImageNeverPull", "", 0),
        ("ErrImagePull", "failed to parse reference: invalid reference format", 0),
        ("ErrImagePull", ABSENT, 60),
        ("ImagePullBackOff", f"Back-off pulling image {IMAGE}: ErrImagePull: {REFUSED}", 180),
        ("ErrImagePull", "dial tcp: i/o timeout", None),
        ("ErrImagePull", f"{PULL}{DIGEST}", None),
        ("SignatureValidationFailed", "the signature validation failed", 60),
        ("RegistryUnavailable", "", None),
        ("ContainerCreating", "", None),
        ("CreateContainerConfigError", 'secret "token" not found', None),
    ],
)
def test_an_answer_is_final_once_it_lasts(reason: str, message: str, final_after: int | None) -> None:
    snapshot = PodSnapshot(pod=pulling(reason, message))
    if final_after is None:
        assert WAIT.step(snapshot, at(299)).error is None
        assert type(WAIT.step(snapshot, at(300)).error) is PodDeadline
        return
    if final_after:
        assert WAIT.step(snapshot, at(final_after - 1)).error is None
        assert WAIT.next_deadline(snapshot, at(0)) == at(final_after)
    error = WAIT.step(snapshot, at(final_after)).error
    assert type(error) is PodImageError
    assert not error.retryable
    assert "train:1" in error.what


def test_a_container_that_runs_needs_no_other_s_image() -> None:
    snapshot = PodSnapshot(pod=pod(running(), waiting("ErrImagePull", ABSENT, name="exporter")))
    assert WAIT.step(snapshot, at(200)).error is None


def ends_at(state: PodState, *events: PodEvent) -> datetime | None:
    steps = (at(0) + timedelta(seconds=second) for second in range(600))
    return next((when for when in steps if cannot_start(state, events, when)), None)


def test_it_lasts_from_the_first_try_that_was_answered_so() -> None:
    refused = pulling("ErrImagePull", REFUSED)
    assert ends_at(refused, failed(REFUSED, first=100, last=150)) == at(280)
    away = failed("dial tcp: i/o timeout", first=110)
    assert ends_at(refused, failed(REFUSED, first=100), away, failed(f"{REFUSED} ", first=120)) == at(300)
    pulled = event("Pulled", 'Successfully pulled image "sidecar:1" in 1s', seconds=110)
    assert ends_at(refused, failed(REFUSED, first=5, last=20), pulled, failed(f"{REFUSED} ", first=120)) == at(300)


def test_a_kubelet_that_does_not_repeat_the_cause_while_it_backs_off() -> None:
    backs_off = pulling("ImagePullBackOff", f"Back-off pulling image {IMAGE}")
    assert ends_at(backs_off, failed(ABSENT, first=10, last=30)) == at(70)
    assert ends_at(backs_off, failed("unexpected EOF", first=10, last=30)) is None


@pytest.mark.parametrize(
    ("message", "fix"),
    [
        (f"{PULL}{DIGEST}", "The image store of node n1 fails"),
        ("dial tcp: i/o timeout", "reach the image's registry"),
    ],
)
def test_what_to_do_once_the_pod_is_late_for_it(message: str, fix: str) -> None:
    error: Any = WAIT.step(PodSnapshot(pod=pulling("ErrImagePull", message)), at(300)).error
    assert fix in error.fix


def test_the_xcom_sidecar_s_image_is_set_in_the_connection() -> None:
    sidecar = pod(waiting("InvalidImageName", name="airflow-xcom-sidecar"), phase="Pending")
    error = cannot_start(sidecar, (), at(0))
    assert error is not None
    assert "xcom_sidecar_container_image" in error.fix
