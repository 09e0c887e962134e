"""Who calls AWS: access keys, roles, and the presigned GetCallerIdentity URLs that are EKS's bearer tokens."""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode
from binascii import Error as Base64Error
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from botocore.credentials import Credentials
from moto.core.exceptions import AccessDeniedError, InvalidClientTokenIdError
from moto.core.responses import ActionResult
from moto.iam.models import IAMBackend, iam_backends
from moto.sts.models import sts_backends
from moto.sts.responses import TokenResponse

from gpu_sandbox.aws import policies
from gpu_sandbox.aws.interface import AccessKey, Identity
from gpu_sandbox.aws.signatures import ALGORITHM, EMPTY_BODY, Scope, SignedRequest

TOKEN_PREFIX = "k8s-aws-v1."
TOKEN_LIFE = timedelta(minutes=15)
CLUSTER_HEADER = "x-k8s-aws-id"
_CLOCK_SKEW = timedelta(minutes=5)
_PARAMETERS = frozenset(
    {
        "action",
        "version",
        "x-amz-algorithm",
        "x-amz-credential",
        "x-amz-date",
        "x-amz-expires",
        "x-amz-security-token",
        "x-amz-signature",
        "x-amz-signedheaders",
    }
)


@dataclass(frozen=True, kw_only=True)
class KnownKey:
    """A key that may sign, and what it says its holder is."""

    credentials: Credentials
    identity: Identity
    expires: datetime | None = None


class Identities:
    """The keys of one account."""

    def __init__(self, *, account_id: str, region: str) -> None:
        self._account_id = account_id
        self._region = region

    @property
    def iam(self) -> IAMBackend:
        return iam_backends[self._account_id]["aws"]

    def add(self, name: str, policy: Mapping[str, Any] | None = None) -> AccessKey:
        """A new IAM user with an access key, and a policy of its own.

        EntityAlreadyExists if the name is taken. UnsupportedPolicy if something in the policy is not evaluated here.
        """
        if policy is not None:
            policies.validate(policy)
        user = self.iam.create_user(self._region, name)
        if policy is not None:
            self.iam.put_user_policy(name, "own", json.dumps(policy))
        key = self.iam.create_access_key(name)
        return AccessKey(access_key_id=key.access_key_id, secret_access_key=key.secret_access_key, arn=user.arn)

    def create_role(self, name: str, *, service: str) -> str:
        """A role that this service may assume; returns its ARN."""
        trust = {
            "Version": "2012-10-17",
            "Statement": [{"Effect": "Allow", "Principal": {"Service": service}, "Action": "sts:AssumeRole"}],
        }
        role = self.iam.create_role(
            role_name=name,
            assume_role_policy_document=json.dumps(trust),
            path="/",
            permissions_boundary=None,
            description="",
            tags=[],
            max_session_duration="3600",
        )
        return str(role.arn)

    def find(self, access_key_id: str) -> KnownKey | None:
        """The key, a user's or a session's; None if there is none or it has been made inactive."""
        key = self.iam.access_keys.get(access_key_id)
        if key is None or getattr(key, "status", "Active") != "Active":
            return None
        session = sts_backends[self._account_id]["aws"].get_assumed_role_from_access_key(access_key_id)
        if session is not None:
            return KnownKey(
                credentials=Credentials(access_key_id, session.secret_access_key, session.session_token),
                identity=Identity(arn=session.arn, account_id=session.account_id, user_id=session.user_id),
                expires=session.expiration.replace(tzinfo=UTC),
            )
        user = self.iam.get_user_from_access_key_id(access_key_id)
        if user is None:
            return None
        return KnownKey(
            credentials=Credentials(access_key_id, key.secret_access_key),
            identity=Identity(arn=user.arn, account_id=self._account_id, user_id=user.id),
        )


def identify(
    token: str,
    *,
    identities: Identities,
    cluster_names: Iterable[str],
    hosts: Collection[str],
    now: datetime,
    longest_life: float | None = None,
) -> Identity | None:
    """Who made this `k8s-aws-v1.` token, checked as EKS's authenticator and STS do; None if it is not valid.

    `longest_life`, in seconds, is for clouds where tokens die sooner than after their 15 minutes.
    """
    url = _decode(token)
    if url is None:
        return None
    parts = urlsplit(url)
    query = parse_qsl(parts.query, keep_blank_values=True)
    values = {key.lower(): value for key, value in query}
    if parts.netloc not in hosts or parts.path not in ("", "/") or len(values) != len(query):
        return None
    life = TOKEN_LIFE if longest_life is None else min(TOKEN_LIFE, timedelta(seconds=longest_life))
    if not _well_formed(values) or not _in_time(values, now, life):
        return None
    known = identities.find(values["x-amz-credential"].split("/")[0])
    if known is None or (known.expires is not None and now >= known.expires):
        return None
    if values.get("x-amz-security-token") != known.credentials.token:
        return None
    signed = any(_signature_matches(url, name, values, known.credentials) for name in cluster_names)
    return known.identity if signed else None


def _decode(token: str) -> str | None:
    if not token.startswith(TOKEN_PREFIX):
        return None
    encoded = token.removeprefix(TOKEN_PREFIX)
    try:
        return urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)).decode("ascii")
    except (Base64Error, ValueError):
        return None


def _well_formed(values: Mapping[str, str]) -> bool:
    signed_headers = values.get("x-amz-signedheaders", "").lower().split(";")
    return (
        values.keys() <= _PARAMETERS
        and {"x-amz-credential", "x-amz-date", "x-amz-expires", "x-amz-signature"} <= values.keys()
        and values.get("action") == "GetCallerIdentity"
        and values.get("x-amz-algorithm") == ALGORITHM
        and {"host", CLUSTER_HEADER} == set(signed_headers)
    )


def _in_time(values: Mapping[str, str], now: datetime, life: timedelta) -> bool:
    """Within the token's life, whatever the URL's own expiry says, which must not be more than 15 minutes."""
    try:
        made = datetime.strptime(values["x-amz-date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
        expires = int(values["x-amz-expires"])
    except ValueError:
        return False
    return 0 <= expires <= TOKEN_LIFE.total_seconds() and made - _CLOCK_SKEW <= now < made + life


def _signature_matches(url: str, cluster_name: str, values: Mapping[str, str], credentials: Credentials) -> bool:
    """Whether it signs a request for this cluster, made with the key that AWS knows."""
    scope = Scope.parse(values["x-amz-credential"])
    if scope is None or scope.service != "sts":
        return False
    parts = urlsplit(url)
    query = [part for part in parts.query.split("&") if not part.lower().startswith("x-amz-signature=")]
    request = SignedRequest(
        method="GET",
        path=parts.path,
        query="&".join(query),
        headers={"host": parts.netloc, CLUSTER_HEADER: cluster_name},
        body_hash=EMPTY_BODY,
        timestamp=values["x-amz-date"],
        scope=scope,
    )
    return request.matches(values["x-amz-signature"], credentials.secret_key)


class StsApi(TokenResponse):
    """STS, where a role must exist to be assumed, and the caller is who signed."""

    def __init__(self, identities: Identities) -> None:
        super().__init__()
        self._identities = identities

    def get_caller_identity(self) -> ActionResult:
        known = self._identities.find(self.get_access_key())
        if known is None:
            raise InvalidClientTokenIdError
        caller = known.identity
        return ActionResult({"UserId": caller.user_id, "Account": caller.account_id, "Arn": caller.arn})

    def assume_role(self) -> ActionResult:
        wanted = self._get_param("RoleArn")
        if not any(role.arn == wanted for role in self._identities.iam.roles.values()):
            known = self._identities.find(self.get_access_key())
            caller = known.identity.arn if known else "unknown"
            raise AccessDeniedError(caller, f"sts:AssumeRole on resource: {wanted}")
        return super().assume_role()
