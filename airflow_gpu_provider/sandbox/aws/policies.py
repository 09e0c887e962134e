"""What IAM policies let a user or a role's session call: by action. Resources and conditions are not looked at.

Who has no policy at all may do everything, which is not as in AWS: tests need no policy to begin with.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

from moto.iam.models import IAMBackend

from airflow_gpu_provider.sandbox.aws.request_faults import AwsError

_ALWAYS = "sts:GetCallerIdentity"
_CODES = {"ec2": "UnauthorizedOperation", "autoscaling": "AccessDenied", "sts": "AccessDenied", "iam": "AccessDenied"}
_ANY_CODE = "AccessDeniedException"


def refusal(iam: IAMBackend, *, arn: str, action: str) -> AwsError | None:
    """What AWS says to whoever has this ARN and may not do this; None if they may."""
    documents = list(_documents(iam, arn))
    if not documents or action == _ALWAYS or _allows(documents, action):
        return None
    service = action.partition(":")[0]
    who = f"User: {arn} is not authorized to perform: {action} because no identity-based policy allows this action"
    message = f"You are not authorized to perform this operation. {who}" if service == "ec2" else who
    return AwsError(status=403, code=_CODES.get(service, _ANY_CODE), message=message)


def _documents(iam: IAMBackend, arn: str) -> Iterator[Mapping[str, Any]]:
    """The policies of an IAM user, a role or the role of a session, its own and those attached to it."""
    kind, _, name = arn.rpartition(":")[2].partition("/")
    holders = iam.users.values() if kind == "user" else iam.roles.values() if kind in ("role", "assumed-role") else ()
    for holder in holders:
        if holder.name == name.partition("/")[0]:
            own = holder.policies.values()
            versions = (version for policy in holder.managed_policies.values() for version in policy.versions)
            attached = (version.document for version in versions if version.is_default)
            yield from (json.loads(text) for text in (*own, *attached))


def _allows(documents: Iterable[Mapping[str, Any]], action: str) -> bool:
    effects = {
        statement["Effect"]
        for document in documents
        for statement in _list(document["Statement"])
        if any(fnmatchcase(action.lower(), pattern.lower()) for pattern in _list(statement.get("Action", ())))
    }
    return effects == {"Allow"}


def _list(value: Any) -> list[Any]:
    """JSON of a policy has one thing or a list of them."""
    return [value] if isinstance(value, (str, Mapping)) else list(value)
