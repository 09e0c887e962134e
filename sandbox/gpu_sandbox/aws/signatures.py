"""AWS's Signature Version 4, from the side that checks it."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import quote

from botocore.utils import normalize_url_path

ALGORITHM = "AWS4-HMAC-SHA256"
EMPTY_BODY = hashlib.sha256(b"").hexdigest()


@dataclass(frozen=True, kw_only=True)
class Scope:
    """A credential scope: who signed, for which day, region and service."""

    access_key_id: str
    date: str
    region: str
    service: str

    @classmethod
    def parse(cls, text: str) -> Scope | None:
        """From `KEY/20260101/us-west-2/eks/aws4_request`; None if it is not of that form."""
        match text.split("/"):
            case [key, date, region, service, "aws4_request"]:
                return cls(access_key_id=key, date=date, region=region, service=service)
        return None


@dataclass(frozen=True, kw_only=True)
class SignedRequest:
    """What a signature covers. `path` and `query` are as they were sent, still percent-encoded."""

    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    """The signed headers, by lower-case name."""
    body_hash: str
    timestamp: str
    scope: Scope

    def signature(self, secret_access_key: str) -> str:
        """The signature that the holder of this secret would have made, in hex."""
        canonical = hashlib.sha256(self._canonical().encode()).hexdigest()
        scope = f"{self.scope.date}/{self.scope.region}/{self.scope.service}/aws4_request"
        to_sign = f"{ALGORITHM}\n{self.timestamp}\n{scope}\n{canonical}"
        key = f"AWS4{secret_access_key}".encode()
        for part in (self.scope.date, self.scope.region, self.scope.service, "aws4_request"):
            key = _hmac(key, part)
        return _hmac(key, to_sign).hex()

    def matches(self, signature: str, secret_access_key: str) -> bool:
        return hmac.compare_digest(self.signature(secret_access_key), signature)

    def _canonical(self) -> str:
        names = sorted(self.headers)
        headers = "".join(f"{name}:{re.sub(' +', ' ', self.headers[name].strip())}\n" for name in names)
        # Every service but S3 signs the path without dot segments, and encoded once more
        path = quote(normalize_url_path(self.path), safe="/~")
        return "\n".join([self.method, path, _sorted_query(self.query), headers, ";".join(names), self.body_hash])


def _sorted_query(query: str) -> str:
    pairs = [pair.partition("=") for pair in query.split("&") if pair]
    return "&".join(f"{key}={value}" for key, _, value in sorted(pairs))


def _hmac(key: bytes, text: str) -> bytes:
    return hmac.new(key, text.encode(), hashlib.sha256).digest()
