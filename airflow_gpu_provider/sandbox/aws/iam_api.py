"""IAM: moto's own, and the policy simulator, which moto has not."""

from __future__ import annotations

from moto.core.responses import ActionResult
from moto.iam.exceptions import NotFoundException
from moto.iam.responses import IamResponse

from airflow_gpu_provider.sandbox.aws import policies
from airflow_gpu_provider.sandbox.aws.identities import Identities


class IamApi(IamResponse):
    """Says of a user or a role what the sandbox's AWS would let it do: by action, as `policies` looks at them."""

    def __init__(self, identities: Identities) -> None:
        super().__init__()
        self._identities = identities

    def simulate_principal_policy(self) -> ActionResult:
        arn = self._get_param("PolicySourceArn")
        iam = self._identities.iam
        arns = {user.arn for user in iam.users.values()} | {role.arn for role in iam.roles.values()}
        if arn not in arns:
            raise NotFoundException(f"The entity with ARN {arn} cannot be found.")
        results = [
            {
                "EvalActionName": action,
                "EvalResourceName": resource,
                "EvalDecision": "implicitDeny" if policies.refusal(iam, arn=arn, action=action) else "allowed",
                "MatchedStatements": [],
                "MissingContextValues": [],
            }
            for action in self._get_param("ActionNames")
            for resource in self._get_param("ResourceArns", ["*"])
        ]
        return ActionResult({"EvaluationResults": results, "IsTruncated": False})
