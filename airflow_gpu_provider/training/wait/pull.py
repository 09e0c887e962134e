"""Why an image was not pulled, and whether that is final: by the last cause that is named, once it lasts. Pure.

Runtimes nest the causes of a failed pull, the last one last: "failed to pull and unpack image: failed to extract layer:
content digest sha256:51f5: not found". What was not found there is no image, but a file of this node's. And the first
answer is not the last: a registry refuses a node whose credentials come a moment late, and the kubelet tries on.

`slow_pull` tells whether a pull was a large part of a training's start, and what would have made it shorter.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal

from airflow_gpu_provider.cluster.model.events import PodEvent
from airflow_gpu_provider.cluster.model.pod_state import ContainerState, PodState
from airflow_gpu_provider.cluster.model.refusals import SIDECAR_SETTINGS, XCOM_SIDECAR
from airflow_gpu_provider.errors import PodImageError
from airflow_gpu_provider.times import format_seconds
from airflow_gpu_provider.untrusted import LONGEST_TEXT

if TYPE_CHECKING:
    from airflow_gpu_provider.pools import GpuPool

Why = Literal["no name", "absent", "refused", "unsigned", "node", "passing"]

PULL_FAILED = frozenset(
    {"ErrImagePull", "ImagePullBackOff", "ImageInspectError", "RegistryUnavailable", "SignatureValidationFailed"}
)
"""Reasons of a container that waits for its image."""

_NEVER_PULLED = frozenset({"InvalidImageName", "ErrImageNeverPull"})

# How long an answer has to last to be final. The kubelet tries again after 10, 20, 40 and 80 s: absent three times, as
# from a pull-through cache at first, and refused five times, as a node is whose role or token is new.
LASTS: dict[Why, timedelta] = {
    "no name": timedelta(0),
    "absent": timedelta(minutes=1),
    "refused": timedelta(minutes=3),
    "unsigned": timedelta(minutes=1),
}

FIX: dict[Why, str] = {
    "no name": "Correct the image's name, or its pull policy.",
    "absent": "Check the image's name and tag, and that it is there for the node's platform.",
    "refused": "Check that the node's role or image_pull_secrets may pull it, and its name: a registry also refuses a"
    " repository that does not exist.",
    "unsigned": "Sign the image as the container runtime's policy on the nodes asks, or take one that is.",
    "node": "The image store of node {node} fails: retry the task, the next try may get another node. See its free disk"
    " (the size of the pool's disk).",
    "passing": "Check that the node can reach the image's registry, or raise startup_timeout_seconds.",
}

_FIX_SIDECAR = f"Set xcom_sidecar_container_image {SIDECAR_SETTINGS}, to an image that the nodes can pull."
"""What to do, once the pod did not start for it."""


@dataclass(frozen=True)
class _Cause:
    pattern: str
    why: Why
    source: str


# In this order: a segment may match several.
_CAUSES = (
    _Cause(
        r"content digest|content store|snapshot|\blayers?\b|\bblobs?\b|descriptor|httpReadSeeker|failed to copy",
        "node",
        "containerd: core/content, core/unpack/unpacker.go, core/remotes/docker; containerd#3604, moby#52411",
    ),
    _Cause(
        r"commit|ingest|\block(ed)?\b|no space left|input/output error|read-only file system|\bmount\b|^\w+ /\S+$",
        "node",
        "containerd: plugins/content/local/writer.go; Go: fs.PathError; errno",
    ),
    _Cause(
        r"dial |lookup|time(d )?.?out|deadline exceeded|\bEOF\b|connection|\bTLS\b|x509|no such host|\b5\d\d\b",
        "passing",
        "Go: net, net/http, crypto/tls; containerd: core/remotes/errors/errors.go",
    ),
    _Cause(r"reference format|couldn't parse|parse reference|invalid image name", "no name", "distribution: reference"),
    _Cause(
        r"signature (validation|was required|is required)|image rejected", "unsigned", "containers/image: signature"
    ),
    _Cause(
        r"denied|forbidden|no pull access|unauthori[sz]ed|authoriz|authentication|credential|insufficient_scope"
        r"|\b40[1-3]\b",
        "refused",
        "containerd: core/remotes/docker/authorizer.go, resolver.go; distribution: errcode; amazon-eks-ami#1949",
    ),
    _Cause(
        r"(manifest|name) unknown|manifest .{0,300}not found"
        r"|(repository|image|tag|artifact) .{0,300}(not exist|not found)",
        "absent",
        "distribution: api/errors; docker; harbor: lib/errors",
    ),
    _Cause(r"no match(ing manifest)? for|no image found in", "absent", "containerd: core/images; cri-o#6457"),
)
_ROWS = tuple((re.compile(cause.pattern, re.IGNORECASE), cause.why) for cause in _CAUSES)

_QUOTED = re.compile(r'"[^"]*"')  # the image's own name
_COLON = re.compile(r":\s")  # between a cause and its own
_WORDS = re.compile(r"[A-Za-z]{2}")
_IS_REFERENCE = re.compile(r"^(?=[^ ]*$)[^ /:@]*[/:@]")
_NOT_FOUND = re.compile(r"^(404 )?not ?found$", re.IGNORECASE)  # by itself it does not say of what
_SAYS_NOTHING = re.compile(  # containerd: errdefs; os/exec; errno
    r"^(unknown|failed precondition|already exists|exit status \d+|no such file or directory|invalid argument\b.*"
    r"|operation not permitted|permission denied|not a directory)$",
    re.IGNORECASE,
)
_CODE = re.compile(  # distribution: registry/api/errcode; what follows it is the registry's own message
    r"^(errors:\s+)?(unauthorized|denied|manifest unknown|(repository )?name (unknown|not known to registry)"
    r"|invalid reference format)$",
    re.IGNORECASE,
)
_LIMITED = re.compile(r"too ?many ?requests|rate limit|\bquota\b", re.IGNORECASE)  # some registries word it as a denial
_BACK_OFF = re.compile(r'Back-off pulling image "[^"]*"')
_FAILED = re.compile(r'^Failed to pull image "[^"]*": ')


def why_not_pulled(message: str) -> Why:
    """Return what the last cause in a message means; "passing" if it is none that is known.

    Before a cause that is not known, only a registry's own verdict says that it is final: "failed to authorize" tells
    what was being done.
    """
    unquoted = _QUOTED.sub("", message)[-LONGEST_TEXT:]  # the last cause is at the end
    if _LIMITED.search(unquoted):
        return "passing"
    is_not_found = is_unclear = False
    for segment in reversed([part.strip(" :") for part in _COLON.split(unquoted)]):
        if _NOT_FOUND.match(segment):
            is_not_found = True
        elif _WORDS.search(segment) and not _IS_REFERENCE.match(segment) and not _SAYS_NOTHING.match(segment):
            why = next((why for pattern, why in _ROWS if pattern.search(segment)), None)
            if why is not None and not (is_unclear and why in LASTS and not _CODE.match(segment)):
                return why
            is_unclear = is_unclear or not is_not_found
    return "absent" if is_not_found and not is_unclear else "passing"


def cannot_start(pod: PodState, events: Sequence[PodEvent], now: datetime) -> PodImageError | None:
    """Return why a pod that is not running will never run; None if waiting may help."""
    for container, message, why, final_at in _failures(pod, events):
        if now >= final_at:
            image = pod.image if container is pod.base else container.name
            return PodImageError(
                f"Pod {pod.name}: the image {image} cannot be pulled ({f'{container.reason}: {message}'.strip(': ')}).",
                _FIX_SIDECAR if container.name == XCOM_SIDECAR else FIX[why],
                pod=pod.name,
                image=image,
            )
    return None


def final_at(pod: PodState, events: Sequence[PodEvent]) -> datetime | None:
    """Return when a failing pull is final unless something changes; None if it is never."""
    return min((at for _, _, _, at in _failures(pod, events)), default=None)


def _failures(pod: PodState, events: Sequence[PodEvent]) -> Iterator[tuple[ContainerState, str, Why, datetime]]:
    """Yield each container whose pull fails for a reason that becomes final: what is said, why, and when."""
    tries = _tries(events)
    for container in pod.waiting:
        if container.reason in _NEVER_PULLED:
            yield container, container.message, "no name", pod.created_at
        elif container.reason in PULL_FAILED:
            # While the kubelet backs off, an older one does not repeat the cause.
            message = container.message if _names_a_cause(container.message) else (tries[-1].message if tries else "")
            why = why_not_pulled(message)
            if why in LASTS:
                yield container, message, why, _since(pod, tries) + LASTS[why]


def _tries(events: Sequence[PodEvent]) -> list[PodEvent]:
    """Return the failed pulls since the last one that succeeded."""
    done = [at for at, event in enumerate(events) if event.reason == "Pulled"]
    return [event for event in events[done[-1] + 1 if done else 0 :] if _FAILED.match(event.message)]


def _since(pod: PodState, tries: Sequence[PodEvent]) -> datetime:
    """Return since when every try has failed with a final answer; the time that it got its node if that is unknown."""
    since: datetime | None = None
    for event in tries:
        since = (since or event.began) if why_not_pulled(event.message) in LASTS else None
    return since or pod.scheduled_at or pod.created_at


def _names_a_cause(message: str) -> bool:
    return bool(message) and _BACK_OFF.fullmatch(message) is None


WORTH_A_MINUTE, WORTH_A_SHARE = 60.0, 0.2
"""Told is a pull of a minute that was at least this share of the time to the container's start."""

_BEFORE = ("waited for a node", "start")


def slow_pull(phases: Sequence[Mapping[str, Any]], pool: GpuPool) -> str:
    """Return what to tell of the slowest pull among an attempt's phases; empty where it was not long."""
    pulls = [each for each in phases if "image" in each]
    seconds = sum(each["seconds"] for each in pulls)
    whole = seconds + sum(each["seconds"] for each in phases if each["phase"] in _BEFORE)
    if seconds < WORTH_A_MINUTE or seconds < WORTH_A_SHARE * whole:
        return ""
    slowest = max(pulls, key=lambda each: float(each["seconds"]))
    took = f"the pull of {slowest['image']} took {_words(slowest['seconds'])} of {_words(whole)} to the start"
    return f"{took}: {'; '.join(remedies(pool))} (docs/fast-start.md)"


def remedies(pool: GpuPool) -> list[str]:
    """Return what makes a pull shorter for the pool, or hides it."""
    return [*filter(None, ("gpu_nodes(prefetch=[...]) begins it when the node joins", pool.how_to_start_sooner))]


def _words(seconds: float) -> str:
    return format_seconds(timedelta(seconds=seconds))
