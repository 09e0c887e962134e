"""PodEvent: an event about a pod, and what it means in words for a task's log. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Self

from airflow_gpu_provider.cluster.model.pod_state import Json
from airflow_gpu_provider.times import parse_time
from airflow_gpu_provider.untrusted import plain

_GREW = re.compile(r"\{([^\s{]{1,300}) (\d{1,9})->(\d{1,9}) \(max: (\d{1,9})\)\}")
_PULLED = re.compile(
    r'pulled image "(?P<image>[^"]+)" in (?P<took>[\w.]+)'
    r"(?: \((?P<whole>[\w.]+) including waiting\))?(?:.*Image size: (?P<bytes>\d+) bytes)?"
)
_PULLING = re.compile(r'[Pp]ulling image "(?P<image>[^"]+)"')
_PRESENT = re.compile(r'image "(?P<image>[^"]+)" already present')
# Karpenter's words for a pod that it deletes: pkg/controllers/node/termination/terminator/events/events.go
_TERMINATION_TIME = re.compile(r"terminationTime (\S+ \S+)")
_PREEMPTION = re.compile(r"\.? (?:preemption: |no new claims to deallocate)")  # what the scheduler says after that
_DURATION = re.compile(r"(?<![\d.])([\d.]{1,20})(ns|us|µs|ms|s|m|h)")  # Go's notation
_WORTH_TELLING = 1.0  # seconds
_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True, kw_only=True)
class ImagePull:
    """A pull that is over.

    Attributes:
        seconds: How long it took, the wait for other pulls on the node included.
        bytes: The image's size; 0 where the kubelet does not say it.
    """

    image: str
    seconds: float
    bytes: int = 0

    @property
    def is_worth_telling(self) -> bool:
        """Whether it took longer than asking the registry for an image that is there already."""
        return self.seconds >= _WORTH_TELLING

    def __str__(self) -> str:
        return f"image {self.image} in {self.seconds:.0f} s{size_in_words(self.bytes)}"


@dataclass(frozen=True, kw_only=True)
class PodEvent:
    """One event of core/v1 about a pod; `by` is the component that reports it."""

    uid: str
    pod: str
    pod_uid: str
    type: str
    reason: str
    message: str
    at: datetime
    by: str = ""
    first_at: datetime | None = None

    @property
    def began(self) -> datetime:
        """When it first happened; `at` is when it last did."""
        return self.first_at or self.at

    @classmethod
    def parse(cls, raw: Json) -> Self:
        about = raw.get("involvedObject") or {}
        return cls(
            uid=raw["metadata"]["uid"],
            pod=about.get("name") or "",
            pod_uid=about.get("uid") or "",
            type=raw.get("type") or "Normal",
            reason=plain(raw.get("reason") or ""),
            message=plain(raw.get("message") or ""),
            at=time_of(raw),
            first_at=parse_time(raw.get("firstTimestamp") or raw.get("eventTime")),
            by=(raw.get("source") or {}).get("component") or raw.get("reportingComponent") or "",
        )

    @property
    def in_words(self) -> str:
        """What happened, for people; empty for what other lines say better."""
        if self.pull is not None:
            return f"pulled {self.pull}" if self.pull.is_worth_telling else ""
        if self.reason in _OF_PROVISIONERS and (who := _provisioner(self.by)):
            return _OF_PROVISIONERS[self.reason](who, self.message)
        if words := _WORDS.get(self.reason):
            return words(self.message)
        is_news = self.type == "Warning" and self.reason not in _LEFT_TO_STATUS
        return f"{self.reason}: {self.message}" if is_news else ""

    @property
    def is_of_autoscaler_that_adds_none(self) -> bool:
        """Whether cluster-autoscaler says that it adds no node for the pod: it does where no group of its own fits."""
        return self.reason == "NotTriggerScaleUp"

    @property
    def disrupts(self) -> bool:
        """Whether a provisioner says that it takes the pod away, with its node."""
        return self.reason in _DISRUPTS and bool(_provisioner(self.by))

    @property
    def about_node(self) -> str:
        """What a provisioner does for the pod while it has no node, without the machine's name; empty for other events.

        So it reads the same for all pods of a gang.
        """
        if self.reason in _FOR_NODES and (who := _provisioner(self.by)):
            return _FOR_NODES[self.reason](who, self.message)
        return self.in_words if self.reason in ("TriggeredScaleUp", "NotTriggerScaleUp") else ""

    @property
    def pulled_image(self) -> str:
        """The image whose pull this event says is over; else empty."""
        found = _PULLED.search(self.message) or _PRESENT.search(self.message) if self.reason == "Pulled" else None
        return found["image"] if found else ""

    @property
    def pulling_image(self) -> str:
        """The image whose pull this event says has begun; else empty."""
        found = _PULLING.search(self.message) if self.reason == "Pulling" else None
        return found["image"] if found else ""

    @property
    def pull(self) -> ImagePull | None:
        """The pull that this event says is over, where it says how long that took."""
        found = _PULLED.search(self.message) if self.reason == "Pulled" else None
        if found is None:
            return None
        seconds = seconds_of(found["whole"] or found["took"])
        return ImagePull(image=found["image"], seconds=seconds, bytes=int(found["bytes"] or 0))


def size_in_words(size: int) -> str:
    """Return what to add to an image's name about its size in bytes; nothing where that is not known (0)."""
    return f", {size / 2**30:.1f} GiB" if size else ""


def seconds_of(duration: str) -> float:
    """Return a duration of Go's notation, like `1m2.5s`, in seconds."""
    return sum(float(n) * _UNITS[unit] for n, unit in _DURATION.findall(duration))


def short_scheduling_message(message: str) -> str:
    """Return the scheduler's message without what it says about preemption and resource claims."""
    return _PREEMPTION.split(message)[0].rstrip(". ")


def time_of(raw: Json) -> datetime:
    """Return when an event of core/v1 last happened, whichever of its fields says so."""
    series = raw.get("series") or {}
    times = (series.get("lastObservedTime"), raw.get("lastTimestamp"), raw.get("eventTime"))
    found = next((time for time in times if time), raw["metadata"].get("creationTimestamp"))
    return parse_time(found) or datetime.min.replace(tzinfo=UTC)


def _provisioner(component: str) -> str:
    """Return the name of what brings nodes, for people; empty for other components."""
    if component == "karpenter":
        return "Karpenter"
    return "EKS Auto Mode" if component.startswith("eks-auto-mode") else ""


def _nominated(who: str, message: str) -> str:
    return f"{_has_one(who, message)} for it: {message.partition(': ')[2] or message}"


def _has_one(who: str, message: str) -> str:
    return f"{who} has {'a node' if 'node/' in message else 'asked for a machine'}"


def _brings_no_node(who: str, message: str) -> str:
    return f"{who} brings no node: {message.removeprefix('Failed to schedule pod, ')}"


def _disrupted(who: str, message: str) -> str:
    found = _TERMINATION_TIME.search(message)
    when = f", which ends at {found[1]}" if found else f" ({message})"
    return f"{who} deletes it for the terminationGracePeriod of its node{when}; that overrides do-not-disrupt"


def _evicted(who: str, message: str) -> str:
    return f"{who} evicts it: {message.removeprefix('Evicted pod: ')}"


def _grew(message: str) -> str:
    # GKE names an instance group by its whole address.
    groups = [f"{name.rpartition('/')[2]} {before}->{after}" for name, before, after, _ in _GREW.findall(message)]
    return f"cluster-autoscaler grew {', '.join(groups)}" if groups else f"cluster-autoscaler: {message}"


def _did_not_grow(message: str) -> str:
    before, colon, after = message.partition(":")
    reason = (after if colon else before).strip()  # empty where it knows no group
    return f"cluster-autoscaler adds no node: {reason}" if reason else ""


def _pulling(message: str) -> str:
    found = _PULLING.search(message)
    return f"pulls image {found['image']}" if found else message


# The same reasons mean something else when the scheduler reports them.
_FOR_NODES = {"Nominated": _has_one, "FailedScheduling": _brings_no_node}
_DISRUPTS = {"Disrupted": _disrupted, "Evicted": _evicted}
_OF_PROVISIONERS = {**_FOR_NODES, "Nominated": _nominated, **_DISRUPTS}

_WORDS = {"TriggeredScaleUp": _grew, "NotTriggerScaleUp": _did_not_grow, "Pulling": _pulling}

# What the pod's own status tells too is left to it: there it is gone when it is no longer so.
_LEFT_TO_STATUS = ("Scheduled", "FailedScheduling", "Pulled", "Created", "Started", "Killing")
