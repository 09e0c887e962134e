"""ApiServer: a Kubernetes API server in this process, as far as this package's requests go.

What it does is what kubernetes.io/docs/reference/using-api/api-concepts says. An object has a uid, and a
resourceVersion that each change raises, and that a write that changes nothing leaves. An update has to name the version
that is there; a patch or a deletion may name a version or a uid; with another one it is a 409. A list shows one moment,
page by page. A watch tells what changed since a version; an object that begins to be selected comes, and one that
ceases to be goes. A version that is too old is a 410. A pod that has a node is deleted by its kubelet, at the latest
after its grace period.

It has no subresources, no admission, no validation and no controllers: what depends on those is tested against the real
one. tests/sandbox/test_fake_api_server.py holds it to the real one.

Tests do to it what other clients, kubelets and controllers would (`put`, `patch`, `remove`), and what networks and
administrators would (`refuse`, `go_away`, `break_watches`, `compact`). Requests come by tests/fakes/clients.py.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from functools import cache
from http import HTTPStatus
from typing import Any, NamedTuple

from tests.fakes.objects import Change, Key, Objects, Raw, copied, merged
from tests.fakes.selectors import Matcher, UnknownField, matcher
from tests.fakes.watches import Watch

MERGE_PATCH = "application/merge-patch+json"

_NAMESPACES = ("default", "kube-node-lease", "kube-public", "kube-system")
_GRACE_SECONDS = 30
_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


class Request(NamedTuple):
    """What a client has asked for, in RBAC's words."""

    verb: str
    resource: str
    path: str
    query: Mapping[str, str]


class Refused(Exception):
    """An answer that is no success: its HTTP status and its body, a Status; with status 0 there was no answer."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.body: Raw = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": message,
            "reason": reason,
            "code": status,
        }


class Where(NamedTuple):
    """What a path names: a collection, or with a name one object of it. A collection without namespace has all."""

    kind: str
    resource: str
    group: str
    namespace: str
    name: str

    @property
    def key(self) -> Key:
        return self.namespace, self.name

    @property
    def words(self) -> str:
        """The resource as error messages have it."""
        return f"{self.resource}.{self.group}" if self.group else self.resource


@cache
def where(path: str) -> Where:
    parts = path.strip("/").split("/")
    root, rest = (parts[:2], parts[2:]) if parts[0] == "api" else (parts[:3], parts[3:])
    namespace = ""
    if rest[:1] == ["namespaces"] and len(rest) > 2:
        namespace, rest = rest[1], rest[2:]
    resource, name = [*rest, ""][:2] if rest else ("version", "")
    assert len(rest) < 3, f"no subresource is played: {path}"
    return Where("/".join([*root, resource]), resource, root[1] if root[0] == "apis" else "", namespace, name)


class ApiServer:
    """One cluster's. Clients may be threads, greenlets, and one event loop, in which then all changes are made.

    Args:
        now: The cluster's time.

    Attributes:
        now: The same.
        requests: All that were sent to it, those that were refused too.
        is_away: It answers nothing.
        token: What requests of AsyncApi have to show; empty: nothing.
    """

    def __init__(self, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self.now = now
        self.requests: list[Request] = []
        self.is_away = False
        self.token = ""
        self._objects = Objects()
        self._refusals: list[tuple[str, str, int]] = []
        self._versions: dict[str, tuple[str, ...]] = {}
        self._pages: dict[str, tuple[int, list[Raw]]] = {}
        self._tokens = itertools.count(1)
        self._watches: list[Watch] = []
        self._mutex = threading.RLock()
        for name in _NAMESPACES:
            self.put(f"api/v1/namespaces/{name}", {"metadata": {"name": name}})

    # -- what others do to its objects -----------------------------------------------------------------------

    def put(self, path: str, raw: Raw) -> Raw:
        """Create an object, or replace what it says whatever its version is; of what is given nothing is kept."""
        with self._mutex:
            at, raw = where(path), copied(raw)
            self._complete(raw["metadata"], at, self._objects.of_kind(at.kind).get(at.key))
            return copied(self._objects.store(at.kind, at.key, raw))

    def patch(self, path: str, patch: Raw) -> Raw:
        """Change an object by a merge patch, a status too."""
        with self._mutex:
            return self.put(path, merged(self._existing(where(path)), patch))

    def remove(self, path: str) -> Raw:
        """Delete an object on the spot, as a kubelet does when a pod's containers have ended; returns what it was."""
        with self._mutex:
            at = where(path)
            self._existing(at)
            return copied(self._objects.remove(at.kind, at.key))

    def read(self, path: str) -> Raw:
        return copied(self._existing(where(path)))

    def has(self, path: str) -> bool:
        at = where(path)
        return at.key in self._objects.of_kind(at.kind)

    def named(self, kind: str) -> dict[str, Raw]:
        """Return the objects of a kind ("api/v1/pods") by name, the first that was created first. Not to be changed."""
        return {name: raw for (_, name), raw in self._objects.of_kind(kind).items()}

    def serve(self, group: str, *versions: str) -> None:
        """Have an API group in these versions, and in no others; a group of which nothing is said has each."""
        with self._mutex:
            self._versions[group] = versions

    def when_changed(self, listener: Callable[[Change], None]) -> None:
        """Have a listener called right after each change."""
        self._objects.listeners.append(listener)

    # -- what networks and administrators do to it -----------------------------------------------------------

    def refuse(self, verb: str = "", *, path: str = "", status: int = 403) -> None:
        """Refuse requests of a verb ("list"), and for a collection or an object, from now on; by default all.

        With status 0 the connection breaks off instead.
        """
        self._refusals.append((verb, path.strip("/"), status))

    def admit(self) -> None:
        """Refuse nothing more."""
        self._refusals.clear()

    def go_away(self) -> None:
        self.is_away = True
        self.break_watches()

    def come_back(self) -> None:
        self.is_away = False

    def break_watches(self) -> None:
        """Have the connections of all watches break off."""
        for watch in self._watches:
            watch.break_off()
        self._watches.clear()

    def end_watches(self) -> None:
        for watch in self._watches:
            watch.end()
        self._watches.clear()

    def send_bookmarks(self) -> None:
        for watch in self._watches:
            watch.send_bookmark()

    def compact(self) -> None:
        """Forget what changed until now: no watch begins before, and no list goes on that began before."""
        with self._mutex:
            self._objects.compact()

    # -- what it answers -------------------------------------------------------------------------------------

    def answer(self, method: str, path: str, query: Mapping[str, str], body: Any, content_type: str) -> Raw:
        """Do what a request asks for, and return the body of its answer; raises Refused."""
        at = where(path)
        verb = _VERBS.get(method) or ("list" if not at.name and at.resource != "version" else "get")
        with self._mutex:
            self._admit(verb, at, path, query)
            if at.resource == "version":
                return self._group(at.group) if at.group else {"major": "1"}
            if verb == "list":
                return copied(self._list(at, query))
            if verb == "create":
                return copied(self._create(at, body))
            if verb == "patch" and content_type != MERGE_PATCH:
                raise Refused(415, "UnsupportedMediaType", "415: Unsupported Media Type")
            if verb == "update" and at.resource == "leases" and not self.has(path):
                return copied(self._create(at, body))  # of what this package updates, they alone are created by it
            now = self._existing(at)
            if verb == "get":
                return copied(now)
            if verb == "delete":
                return copied(self._delete(at, now, body or {}))
            return copied(self._update(at, now, merged(now, body) if verb == "patch" else body, sent=body))

    def watch(self, path: str, query: Mapping[str, str]) -> Watch:
        """Begin a watch from the query's resourceVersion; raises Refused. That it is too old the watch itself tells."""
        at, since = where(path), int(query["resourceVersion"])
        self._admit("watch", at, path, query)
        watch = Watch(self._objects, at.kind, at.namespace, self._matcher(at, query), since)
        watch.has_bookmarks = query.get("allowWatchBookmarks") == "true"
        if since < self._objects.oldest:
            watch.fail(Refused(410, "Expired", f"too old resource version: {since} ({self._objects.oldest})").body)
        self._watches.append(watch)
        return watch

    def _admit(self, verb: str, at: Where, path: str, query: Mapping[str, str]) -> None:
        """Note a request, and raise Refused where it is."""
        self.requests.append(Request(verb, at.resource, path, query))
        if self.is_away:
            raise Refused(0, "", "connection refused")
        version = at.kind.split("/")[-2]
        if version != at.group and version not in self._versions.get(at.group, (version,)):
            raise Refused(404, "NotFound", "404 page not found")
        for refused_verb, refused_path, status in self._refusals:
            if refused_verb in ("", verb) and refused_path in ("", path.strip("/")):
                scope = f'in the namespace "{at.namespace}"' if at.namespace else "at the cluster scope"
                user = f'User "fake" cannot {verb} resource "{at.resource}" in API group "{at.group}" {scope}'
                phrase = HTTPStatus(status).phrase if status else "connection reset"
                message = f"{at.words} is forbidden: {user}" if status == 403 else phrase
                raise Refused(status, phrase.replace(" ", ""), message)

    def _group(self, name: str) -> Raw:
        if not self._versions.get(name):
            raise Refused(404, "NotFound", "404 page not found")
        versions = [{"groupVersion": f"{name}/{each}", "version": each} for each in self._versions[name]]
        return {"kind": "APIGroup", "name": name, "versions": versions, "preferredVersion": versions[0]}

    def _list(self, at: Where, query: Mapping[str, str]) -> Raw:
        if token := query.get("continue"):
            version, left = self._pages.pop(token, (0, []))
            if version < self._objects.oldest:
                raise Refused(
                    410, "Expired", "The provided continue parameter is too old to display a consistent list."
                )
        else:
            matches = self._matcher(at, query)
            found = sorted(self._objects.of_kind(at.kind).items())
            left = [raw for (namespace, _), raw in found if at.namespace in ("", namespace) and matches(raw)]
            version = self._objects.version
        limit = int(query.get("limit", len(left)))
        page, left = left[:limit], left[limit:]
        metadata: Raw = {"resourceVersion": str(version)}
        if left:
            metadata["continue"] = token = str(next(self._tokens))
            self._pages[token] = version, left
            if "labelSelector" not in query and "fieldSelector" not in query:
                metadata["remainingItemCount"] = len(left)
        return {"metadata": metadata, "items": page}

    def _matcher(self, at: Where, query: Mapping[str, str]) -> Matcher:
        try:
            return matcher(at.resource, query)
        except UnknownField as error:
            raise Refused(400, "BadRequest", str(error)) from error

    def _create(self, at: Where, body: Raw) -> Raw:
        at = at._replace(name=body["metadata"]["name"])
        if at.namespace and ("", at.namespace) not in self._objects.of_kind("api/v1/namespaces"):
            raise _not_found("namespaces", at.namespace)
        if at.key in self._objects.of_kind(at.kind):
            raise Refused(409, "AlreadyExists", f'{at.words} "{at.name}" already exists')
        raw = copied(body)
        self._complete(raw["metadata"], at, None)
        if at.resource == "pods":
            raw["status"] = {"phase": "Pending"}
        return self._objects.store(at.kind, at.key, raw)

    def _update(self, at: Where, now: Raw, wanted: Raw, *, sent: Raw) -> Raw:
        """Store what is wanted, if what was sent is about the object that is there, as it is there."""
        metadata, there = sent.get("metadata", {}), now["metadata"]
        if wanted is sent:
            self._check_uid(at, now, metadata.get("uid"))
            if not metadata.get("resourceVersion"):
                raise _invalid(at, "metadata.resourceVersion", "Invalid value: 0: must be specified for an update")
        if metadata.get("resourceVersion", there["resourceVersion"]) != there["resourceVersion"]:
            raise _conflict(at, "the object has been modified; please apply your changes to the latest version")
        if metadata.get("uid", there["uid"]) != there["uid"]:
            raise _invalid(at, "metadata.uid", f'Invalid value: "{metadata["uid"]}": field is immutable')
        raw = copied(wanted)
        self._complete(raw["metadata"], at, now)
        return now if raw == now else self._objects.store(at.kind, at.key, raw)

    def _delete(self, at: Where, now: Raw, options: Raw) -> Raw:
        self._check_uid(at, now, options.get("preconditions", {}).get("uid"))
        if at.resource != "pods":
            return self._objects.remove(at.kind, at.key)
        grace = options.get("gracePeriodSeconds", now["spec"].get("terminationGracePeriodSeconds", _GRACE_SECONDS))
        is_over = now["status"]["phase"] in ("Succeeded", "Failed")
        if is_over or not grace or not now["spec"].get("nodeName"):
            return self._objects.remove(at.kind, at.key)
        at_latest = _stamp(self.now() + timedelta(seconds=grace))
        if now["metadata"].get("deletionTimestamp", at_latest) < at_latest:
            return now
        ending = {"deletionTimestamp": at_latest, "deletionGracePeriodSeconds": grace}
        return self._objects.store(at.kind, at.key, copied(merged(now, {"metadata": ending})))

    def _existing(self, at: Where) -> Raw:
        found = self._objects.of_kind(at.kind).get(at.key)
        if found is None:
            raise _not_found(at.words, at.name)
        return found

    def _check_uid(self, at: Where, now: Raw, uid: str | None) -> None:
        there = now["metadata"]["uid"]
        if uid and uid != there:
            raise _conflict(at, f"Precondition failed: UID in precondition: {uid}, UID in object meta: {there}")

    def _complete(self, metadata: Raw, at: Where, before: Raw | None) -> None:
        """Set what only an API server sets, and leave out what is empty."""
        metadata["name"] = at.name
        if at.namespace:
            metadata["namespace"] = at.namespace
        for name in ("labels", "annotations"):
            if not metadata.get(name, True):
                del metadata[name]
        if before:
            was = before["metadata"]
            metadata |= {name: was[name] for name in ("uid", "creationTimestamp", "resourceVersion")}
        else:
            metadata.setdefault("uid", f"uid-{self._objects.version + 1}")
            metadata.setdefault("creationTimestamp", _stamp(self.now()))


def _not_found(words: str, name: str) -> Refused:
    return Refused(404, "NotFound", f'{words} "{name}" not found')


def _conflict(at: Where, why: str) -> Refused:
    return Refused(409, "Conflict", f'Operation cannot be fulfilled on {at.words} "{at.name}": {why}')


def _invalid(at: Where, field: str, why: str) -> Refused:
    refused = Refused(422, "Invalid", f'{at.words} "{at.name}" is invalid: {field}: {why}')
    refused.body["details"] = {"causes": [{"reason": "FieldValueInvalid", "message": why, "field": field}]}
    return refused


def _stamp(at: datetime) -> str:
    """Return a time as Kubernetes' Time has it, in whole seconds."""
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
