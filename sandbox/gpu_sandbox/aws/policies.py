"""IAM's decision on one request: what a user's or role's policies say of an action, a resource and condition keys.

As the reference of IAM's policy evaluation logic has it for identity-based policies in one account: a statement that
denies wins, then one that allows, and without either it is denied. Session policies, boundaries and organizations are
not looked at. A user without any policy may do everything, which is not as in AWS: tests need no policy to begin with.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal

from moto.iam.models import IAMBackend

from gpu_sandbox.aws.conditions import (
    Context,
    UnsupportedPolicy,
    arn_like,
    as_list,
    check,
    hold,
    keys_of,
    like,
)

Document = Mapping[str, Any]
_ELEMENTS = {"Sid", "Effect", "Action", "NotAction", "Resource", "NotResource", "Condition"}


@dataclass(frozen=True, kw_only=True)
class Request:
    """One question to IAM: may this be done to this resource?

    `known` are the condition keys, in lower case, that the service knows for it, whether the request has them or not;
    one that ends in `/` stands for all that begin so. None: any may be looked at.
    """

    action: str
    resource: str
    context: Context = field(default_factory=dict)
    known: frozenset[str] | None = None


@dataclass(frozen=True, kw_only=True)
class Decision:
    """The answer, and the statements, by Sid, that gave it. `missing` are keys that were looked at and not there."""

    outcome: Literal["allowed", "implicitDeny", "explicitDeny"]
    statements: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()

    @property
    def allowed(self) -> bool:
        return self.outcome == "allowed"


def of_identity(iam: IAMBackend, arn: str) -> list[Document]:
    """The policies of an IAM user, a role or the role of a session: its own and those attached to it."""
    kind, _, name = arn.rpartition(":")[2].partition("/")
    holders = iam.users.values() if kind == "user" else iam.roles.values() if kind in ("role", "assumed-role") else ()
    documents: list[Document] = []
    for holder in holders:
        if holder.name == name.partition("/")[0]:
            own = holder.policies.values()
            versions = (version for policy in holder.managed_policies.values() for version in policy.versions)
            attached = (version.document for version in versions if version.is_default)
            documents += [_parse(text) for text in (*own, *attached)]
    return documents


@lru_cache
def _parse(text: str) -> Document:
    document: Document = json.loads(text)
    return document


def validate(document: Document) -> None:
    """UnsupportedPolicy if something in it is not evaluated here."""
    for statement in as_list(document["Statement"]):
        if unknown := statement.keys() - _ELEMENTS:
            raise UnsupportedPolicy(f"statement {statement.get('Sid')} has {sorted(unknown)}")
        if statement["Effect"] not in ("Allow", "Deny"):
            raise UnsupportedPolicy(f"statement {statement.get('Sid')} has the effect {statement['Effect']}")
        check(statement.get("Condition", {}))


def mentioned(documents: Iterable[Document], action: str) -> bool:
    """Whether any statement is about the action: without one, no resource and no condition can allow it."""
    return any(_is_about(statement, action) for document in documents for statement in as_list(document["Statement"]))


def evaluate(documents: Iterable[Document], request: Request) -> Decision:
    """Decide. UnsupportedPolicy if a statement about the request has what is not known here."""
    found: dict[str, list[str]] = {"Allow": [], "Deny": []}
    missing: list[str] = []
    for statement in _applicable(documents, request):
        conditions = statement.get("Condition", {})
        missing += [key for key in keys_of(conditions) if key.lower() not in request.context]
        if hold(conditions, request.context):
            found[statement["Effect"]].append(str(statement.get("Sid", "")))
    for effect, outcome in (("Deny", "explicitDeny"), ("Allow", "allowed")):
        if found[effect]:
            return Decision(outcome=outcome, statements=tuple(found[effect]), missing=_unique(missing))  # type: ignore[arg-type]
    return Decision(outcome="implicitDeny", missing=_unique(missing))


def _unique(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))


def _applicable(documents: Iterable[Document], request: Request) -> Iterator[Mapping[str, Any]]:
    for document in documents:
        validate(document)
        for statement in as_list(document["Statement"]):
            if _is_about(statement, request.action) and _has_resource(statement, request.resource):
                _check_keys(statement, request)
                yield statement


def _check_keys(statement: Mapping[str, Any], request: Request) -> None:
    if request.known is None:
        return
    for key in keys_of(statement.get("Condition", {})):
        name, slash, _ = key.lower().partition("/")
        if name + slash not in request.known:
            sid = statement.get("Sid", "without a Sid")
            raise UnsupportedPolicy(f"{request.action} has no condition key {key}, which statement {sid} looks at")


def _is_about(statement: Mapping[str, Any], action: str) -> bool:
    if "NotAction" in statement:
        return not _any_like(action, as_list(statement["NotAction"]))
    return _any_like(action, as_list(statement.get("Action", ())))


def _any_like(action: str, patterns: Sequence[str]) -> bool:
    return any(like(action, pattern, re.IGNORECASE) for pattern in patterns)


def _has_resource(statement: Mapping[str, Any], resource: str) -> bool:
    if "NotResource" in statement:
        return not any(arn_like(resource, pattern) for pattern in as_list(statement["NotResource"]))
    return any(arn_like(resource, pattern) for pattern in as_list(statement.get("Resource", ())))
