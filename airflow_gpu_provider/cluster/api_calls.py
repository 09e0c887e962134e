"""Each request to a cloud or a cluster: told to listeners, of which there are none by default, and why one has failed.

What HTTP libraries say of a connection that failed is put in words for people: no object's repr, and no request's whole
address. While they try again by themselves they say nothing: who waits for them logs one line.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class ApiCall:
    """One request and its answer; a request that is sent again is reported again.

    Attributes:
        api: "eks", "autoscaling", "ec2", "compute", "container", "kubernetes".
        operation: The API's own name for it, or method and path without any name in it.
        error: The API's code for what it refused; empty where it did not.
    """

    api: str
    operation: str
    error: str = ""


_listeners: list[Callable[[ApiCall], None]] = []


@contextmanager
def reported_to(listener: Callable[[ApiCall], None]) -> Iterator[None]:
    """Tell a listener of the calls of this process, from all of its threads, until the block ends."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


def report_call(api: str, operation: str, error: str = "") -> None:
    for listener in tuple(_listeners):
        listener(ApiCall(api=api, operation=operation, error=error))


# -- AWS -----------------------------------------------------------------------------------------------------


def report_calls_to_aws(events: Any) -> None:
    """Tell of each request that the clients of a boto3 session send; `events` is its emitter.

    "response-received" is emitted for each try, also for one that had no answer.
    """
    events.register("response-received", _aws_response, unique_id="airflow-gpu-provider.api-calls")


def _aws_response(event_name: str, parsed_response: Any = None, exception: Any = None, **_more: Any) -> None:
    _, service, operation = event_name.split(".", 2)
    code = (parsed_response or {}).get("Error", {}).get("Code", "")
    report_call(service, operation, str(code) if exception is None else type(exception).__name__)


# -- Google --------------------------------------------------------------------------------------------------

_NAMES = re.compile(r"/(projects|zones|regions|locations)/[^/:]+")
_OF_GROUPS = re.compile(
    r"/(clusters|nodePools|operations|instanceGroupManagers|instances|machineTypes|acceleratorTypes)/[^/:]+"
)


def report_calls_to_google(session: Any) -> None:
    """Tell of each answer that a session of requests gets from one of Google's APIs."""
    session.hooks["response"].append(_google_response)


def _google_response(response: Any, *_: Any, **__: Any) -> None:
    path = str(response.request.path_url).partition("?")[0]
    api = "compute" if path.startswith("/compute/") else "container" if "/clusters/" in path else "google"
    collections = _OF_GROUPS.sub(r"/\1/-", _NAMES.sub(r"/\1/-", path))
    error = "" if response.ok else f"{response.status_code} {_google_reason(response)}".strip()
    report_call(api, f"{response.request.method} {collections}", error)


def _google_reason(response: Any) -> str:
    try:
        answer = response.json()["error"]
        entries = (*answer.get("errors", ()), *answer.get("details", ()))
        reasons = [str(each["reason"]) for each in entries if "reason" in each]
        # A 403 of Compute Engine is a limit of calls or a permission: only its reason tells which.
        first = [*reasons, answer.get("status")] if response.status_code == 403 else [answer.get("status"), *reasons]
        return str(next(filter(None, first), ""))
    except (ValueError, LookupError, TypeError, AttributeError):
        return ""


# -- Kubernetes ----------------------------------------------------------------------------------------------


def report_kubernetes_call(method: str, path: str, status: int | None, reason: str = "") -> None:
    """Tell of one answer of an API server; `status` is None where there was none."""
    if not _listeners:
        return
    error = "no answer" if status is None else f"{status} {reason}".strip() if status >= 300 else ""
    report_call("kubernetes", f"{method} {_collection(path)}", error)


def _collection(path: str) -> str:
    """Return a path without the names of namespaces and objects: "/api/v1/pods/-/log"."""
    group, parts = _without_namespace(path)
    if len(parts) > 1:
        parts = [parts[0], "-", *parts[2:]]
    return "/" + "/".join([*group, *parts])


def resource_of(path: str) -> str:
    """Return the resource that a path is of, in RBAC's words: "pods", "pods/log"; an API group's path as it is."""
    group, parts = _without_namespace(path)
    return "/".join([*parts[:1], *parts[2:3]] or group)


def _without_namespace(path: str) -> tuple[list[str], list[str]]:
    """Return the parts of a path: its API group and version, and what comes after the namespace."""
    parts = path.partition("?")[0].strip("/").split("/")
    before = 2 if parts[0] == "api" else 3 if parts[0] == "apis" else len(parts)
    group, parts = parts[:before], parts[before:]
    return group, parts[2:] if parts[:1] == ["namespaces"] and len(parts) > 2 else parts


# -- connections that failed ---------------------------------------------------------------------------------

_POOL = re.compile(r"<?HTTPS?Connection(?:Pool)?\(host='?([^',]{1,253})'?, port=(\d{1,5})\)(?: at 0x\w+>)?")
_ADDRESS = re.compile(r"(https?://[^/\s\"'?]+)[^\s\"']*")


def in_words(error: BaseException) -> str:
    """Return why a request had no answer, from an error of urllib3, requests or botocore."""
    cause: object = error
    while True:
        # requests keeps urllib3's error as its argument, and urllib3's MaxRetryError the last try's as its reason.
        inner = getattr(cause, "reason", None) or next(iter(getattr(cause, "args", ())), None)
        if not isinstance(inner, Exception):
            break
        cause = inner
    args = getattr(cause, "args", ())
    text = " ".join(map(str, args)) if len(args) > 1 and not isinstance(cause, OSError) else str(cause)
    words = _ADDRESS.sub(r"\1", _POOL.sub(r"\1:\2", text))
    return words.strip().rstrip(".") or type(error).__name__


class _OfThisThread(logging.Filter):
    """Drops what threads log that are in `unlogged`."""

    def __init__(self) -> None:
        super().__init__()
        self.quiet = threading.local()

    def filter(self, record: logging.LogRecord) -> bool:
        return not getattr(self.quiet, "depth", 0)


_filters: dict[str, _OfThisThread] = {}


@contextmanager
def unlogged(name: str) -> Iterator[None]:
    """Drop what this thread logs through the logger of this name."""
    logger, known = logging.getLogger(name), _filters.setdefault(name, _OfThisThread())
    if known not in logger.filters:
        logger.addFilter(known)
    before = getattr(known.quiet, "depth", 0)
    known.quiet.depth = before + 1
    try:
        yield
    finally:
        known.quiet.depth = before
