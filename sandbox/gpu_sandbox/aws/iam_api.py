"""IAM: moto's own, and the policy simulator, which moto lacks."""

from __future__ import annotations

from typing import Any

from moto.core.responses import ActionResult
from moto.iam.exceptions import NotFoundException
from moto.iam.responses import IamResponse

from gpu_sandbox.aws import policies
from gpu_sandbox.aws.authorization import as_values
from gpu_sandbox.aws.identities import Identities
from gpu_sandbox.aws.policies import Request


class IamApi(IamResponse):
    """Says of a user or a role what its policies allow, with the condition keys that the question brings."""

    def __init__(self, identities: Identities) -> None:
        super().__init__()
        self._identities = identities

    def simulate_principal_policy(self) -> ActionResult:
        arn = self._get_param("PolicySourceArn")
        iam = self._identities.iam
        arns = {user.arn for user in iam.users.values()} | {role.arn for role in iam.roles.values()}
        if arn not in arns:
            raise NotFoundException(f"The entity with ARN {arn} cannot be found.")
        context = {
            entry["ContextKeyName"].lower(): as_values(entry["ContextKeyValues"])
            for entry in self._get_param("ContextEntries", [])
        }
        documents = policies.of_identity(iam, arn)
        results = [
            _result(documents, Request(action=action, resource=resource, context=context))
            for action in self._get_param("ActionNames")
            for resource in self._get_param("ResourceArns", ["*"])
        ]
        return ActionResult({"EvaluationResults": results, "IsTruncated": False})


def _result(documents: list[policies.Document], request: Request) -> dict[str, Any]:
    decision = policies.evaluate(documents, request) if documents else policies.Decision(outcome="allowed")
    return {
        "EvalActionName": request.action,
        "EvalResourceName": request.resource,
        "EvalDecision": decision.outcome,
        "MatchedStatements": [],
        "MissingContextValues": list(decision.missing),
    }
