"""Lets each call through or refuses it, as its caller's IAM policies say; remembers what each was used for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from moto.iam.models import IAMBackend

from gpu_sandbox.aws import policies
from gpu_sandbox.aws.authorization import Authorization
from gpu_sandbox.aws.policies import Decision, Request
from gpu_sandbox.aws.request_faults import AwsError

_ALWAYS = "sts:GetCallerIdentity"
_CODES = {"ec2": "UnauthorizedOperation", "autoscaling": "AccessDenied", "sts": "AccessDenied", "iam": "AccessDenied"}
_ANY_CODE = "AccessDeniedException"
# Roles that EKS reads in the caller's name: the error is not one of access.
_ROLE_READS = ("iam:GetRole", "iam:ListAttachedRolePolicies")


@dataclass(frozen=True, order=True)
class PolicyUse:
    """The statement, by Sid, that allowed an action, and the call that needed it: `eks:CreateNodegroup`."""

    statement: str
    action: str
    call: str


class AccessControl:
    """IAM's decisions in one account."""

    def __init__(self, authorization: Authorization, iam: IAMBackend) -> None:
        self._authorization = authorization
        self._iam = iam
        self._uses: defaultdict[str, set[PolicyUse]] = defaultdict(set)
        self._refused: defaultdict[str, set[PolicyUse]] = defaultdict(set)

    def uses(self, arn: str) -> frozenset[PolicyUse]:
        """What the policies of this user or role, or of the session's role, have allowed."""
        return frozenset(self._uses[arn])

    def refused(self, arn: str) -> frozenset[PolicyUse]:
        """What they have not."""
        return frozenset(self._refused[arn])

    def refusal(self, arn: str, call: str, parameters: Callable[[], Mapping[str, Any]]) -> AwsError | None:
        """What AWS says to the caller with this ARN, who may not make this call; None if it may.

        UnsupportedPolicy if the sandbox cannot tell as AWS would.
        """
        documents = policies.of_identity(self._iam, arn)
        if not documents or call == _ALWAYS:
            return None
        if not policies.mentioned(documents, call):
            self._refused[arn].add(PolicyUse("", call, call))
            return _denied(arn, Request(action=call, resource="*"), call, Decision(outcome="implicitDeny"))
        for request in self._authorization.requests(call, parameters(), caller=arn):
            decision = policies.evaluate(documents, request)
            if not decision.allowed:
                self._refused[arn].add(PolicyUse("", request.action, call))
                return _denied(arn, request, call, decision)
            self._uses[arn] |= {PolicyUse(sid, request.action, call) for sid in decision.statements}
        return None


def _denied(arn: str, request: Request, call: str, decision: Decision) -> AwsError:
    """The refusal in the words of the service that was called."""
    service, action = call.partition(":")[0], request.action
    if action in _ROLE_READS and action != call:
        role = request.resource.rpartition("/")[2]
        text = f"Failed to validate if SLR: {role} already exists due to missing permissions for '{action}'"
        return AwsError(status=400, code="InvalidRequestException", message=text)
    if action.startswith("ec2:") and action != call:
        text = "You are not authorized to launch instances with this launch template. Encoded authorization failure"
        return AwsError(status=400, code="InvalidRequestException", message=f"{text} message: sandbox-{action}")
    where = "" if request.resource == "*" else f" on resource: {request.resource}"
    why = f"because no identity-based policy allows the {action} action"
    if decision.outcome == "explicitDeny":
        why = "with an explicit deny in an identity-based policy"
    who = f"User: {arn} is not authorized to perform: {action}{where} {why}"
    message = f"You are not authorized to perform this operation. {who}" if service == "ec2" else who
    return AwsError(status=403, code=_CODES.get(service, _ANY_CODE), message=message)
