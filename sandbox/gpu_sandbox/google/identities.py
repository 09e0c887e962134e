"""Service accounts, their keys, and the tokens that prove who calls: OAuth access tokens and self-signed JWTs."""

from __future__ import annotations

import base64
import json
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from gpu_sandbox.faults import Faults
from gpu_sandbox.google.interface import Identity

_CLOUD_PLATFORM = "https://www.googleapis.com/auth/cloud-platform"
JWT_BEARER = "urn:ietf:params:oauth:grant-type:jwt-bearer"
# What google-auth writes there, whatever the key file's token_uri is.
_GOOGLES_AUDIENCE = "https://oauth2.googleapis.com/token"
_NARROWER = {"iamcredentials": "https://www.googleapis.com/auth/iam"}
_EMAIL = frozenset({"https://www.googleapis.com/auth/userinfo.email", "email"})
_CLOCK_SKEW = 60.0
_LONGEST_JWT = 3600.0


@dataclass(frozen=True, kw_only=True)
class _Account:
    identity: Identity
    key_id: str
    key: rsa.RSAPrivateKey


@dataclass(frozen=True, kw_only=True)
class Bearer:
    """Who holds a token, and for what it was issued: OAuth scopes, none for a JWT that names an API instead."""

    identity: Identity
    scopes: frozenset[str]

    @property
    def username(self) -> str:
        """The name by which GKE's API server knows it: the unique id, unless the token may tell the email.

        That is so by GKE's docs ("Role-based access control", subjects by unique id) and apache/airflow#51938;
        client-go's and gcloud's own plugins ask for the scope for this.
        """
        return self.identity.email if self.scopes & _EMAIL else self.identity.unique_id

    def may_call(self, service: str) -> bool:
        """Return True if the token's scopes are enough for a service, whatever its account may do there."""
        return not self.scopes or not self.scopes.isdisjoint((_CLOUD_PLATFORM, _NARROWER.get(service, _CLOUD_PLATFORM)))


class InvalidGrant(Exception):
    """An assertion that proves nothing; the text says why, as Google's token endpoint does."""

    def __init__(self, description: str, code: str = "invalid_grant") -> None:
        super().__init__(description)
        self.code = code


class Identities:
    """The service accounts of one project, each with one key."""

    def __init__(
        self,
        *,
        project_id: str,
        token_uri: str,
        token_lifetime: float,
        faults: Faults,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._project_id = project_id
        self._token_uri = token_uri
        self._token_lifetime = token_lifetime
        self._faults = faults
        self._clock = clock
        self._lock = threading.Lock()
        self._accounts: dict[str, _Account] = {}
        self._tokens: dict[str, tuple[Bearer, float]] = {}

    def add(self, name: str) -> Identity:
        """A new service account. ValueError if the name is taken."""
        email = f"{name}@{self._project_id}.iam.gserviceaccount.com"
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        unique_id = str(secrets.randbelow(9 * 10**20) + 10**20)
        identity = Identity(email=email, unique_id=unique_id, project_id=self._project_id)
        with self._lock:
            if email in self._accounts:
                raise ValueError(f"service account {email} exists")
            self._accounts[email] = _Account(identity=identity, key_id=secrets.token_hex(20), key=key)
        return identity

    def keyfile(self, identity: Identity) -> dict[str, str]:
        """The account's key, in the form of the JSON file that Google's console hands out."""
        account = self._accounts[identity.email]
        pem = account.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        return {
            "type": "service_account",
            "project_id": self._project_id,
            "private_key_id": account.key_id,
            "private_key": pem.decode(),
            "client_email": identity.email,
            "client_id": identity.unique_id,
            "token_uri": self._token_uri,
            "universe_domain": "googleapis.com",
        }

    def rotate_key(self, identity: Identity) -> None:
        """Give the account a new key in place of the one it has; tokens that were issued for that one go on."""
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        with self._lock:
            self._accounts[identity.email] = _Account(identity=identity, key_id=secrets.token_hex(20), key=key)

    def exchange(self, form: Mapping[str, str]) -> dict[str, Any]:
        """What the token endpoint answers. Raises InvalidGrant."""
        if form.get("grant_type") != JWT_BEARER:
            raise InvalidGrant(f"Unsupported grant_type: {form.get('grant_type')}")
        identity, claims = self._verify(form.get("assertion", ""))
        if claims.get("aud") not in (self._token_uri, _GOOGLES_AUDIENCE):
            raise InvalidGrant("Invalid JWT: the audience is not this token endpoint")
        scopes = _scopes(claims)
        if not scopes:
            raise InvalidGrant("Empty or missing scope not allowed.", "invalid_scope")
        token = self._issue(Bearer(identity=identity, scopes=scopes))
        return {"access_token": token, "expires_in": int(self._token_lifetime), "token_type": "Bearer"}

    def impersonate(self, email: str, scopes: Iterable[str]) -> tuple[str, float] | None:
        """A token of another account of the project, and when it ends; None if there is no such account."""
        with self._lock:
            account = self._accounts.get(email)
        if account is None:
            return None
        token = self._issue(Bearer(identity=account.identity, scopes=frozenset(scopes)))
        return token, self._clock() + self._token_lifetime

    def _issue(self, bearer: Bearer) -> str:
        token = f"ya29.sandbox-{secrets.token_urlsafe(48)}"
        with self._lock:
            now = self._clock()
            self._tokens = {t: held for t, held in self._tokens.items() if held[1] + self._token_lifetime > now}
            self._tokens[token] = (bearer, now)
        return token

    def revoke_all(self) -> None:
        """No access token issued so far is taken any more."""
        with self._lock:
            self._tokens.clear()

    def identify_access_token(self, token: str) -> Bearer | None:
        """Who holds this access token; None if it was not issued here or has expired."""
        with self._lock:
            bearer, issued = self._tokens.get(token, (None, 0.0))
        return bearer if bearer and self._lives(issued, self._token_lifetime) else None

    def _lives(self, issued: float, lifetime: float) -> bool:
        longest = self._faults.token_seconds
        return self._clock() < issued + (lifetime if longest is None else min(lifetime, longest))

    def identify(self, token: str) -> Bearer | None:
        """Who calls an API with this token, an access token or a JWT that the account signed itself."""
        if token.count(".") != 2 or token.startswith("ya29."):
            return self.identify_access_token(token)
        try:
            identity, claims = self._verify(token)
        except InvalidGrant:
            return None
        bearer = Bearer(identity=identity, scopes=_scopes(claims))
        return bearer if self._lives(float(claims["iat"]), _LONGEST_JWT + _CLOCK_SKEW) else None

    def _verify(self, jwt: str) -> tuple[Identity, dict[str, Any]]:
        try:
            signed, _, signature = jwt.rpartition(".")
            claims = json.loads(_decode(signed.partition(".")[2]))
            account = self._accounts[claims["iss"]]
            account.key.public_key().verify(_decode(signature), signed.encode(), padding.PKCS1v15(), hashes.SHA256())
            issued, expires = float(claims["iat"]), float(claims["exp"])
        except KeyError as error:
            raise InvalidGrant(f"Invalid grant: account not found or claim missing ({error})") from error
        except (ValueError, TypeError, InvalidSignature) as error:
            raise InvalidGrant("Invalid JWT Signature.") from error
        now = self._clock()
        if not issued - _CLOCK_SKEW <= now <= expires + _CLOCK_SKEW or expires - issued > _LONGEST_JWT + _CLOCK_SKEW:
            raise InvalidGrant("Invalid JWT: Token must be a short-lived token (60 minutes)")
        return account.identity, claims


def _scopes(claims: Mapping[str, Any]) -> frozenset[str]:
    return frozenset(str(claims.get("scope", "")).split())


def _decode(part: str) -> bytes:
    return base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))
