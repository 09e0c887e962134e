"""SigV4 as AWS checks it agrees with botocore, which signs."""

from __future__ import annotations

import hashlib
from urllib.parse import quote, urlsplit

import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from hypothesis import given
from hypothesis import strategies as st

from gpu_sandbox.aws.signatures import Scope, SignedRequest

WORDS = st.text(st.characters(min_codepoint=32, max_codepoint=0x2FF), min_size=1, max_size=12)
SECRET = "wJalrXUtnFEMI/K7MDENG"


def signed_by_botocore(method: str, url: str, headers: dict[str, str], body: bytes) -> tuple[SignedRequest, str]:
    request = AWSRequest(method=method, url=url, headers=headers, data=body)
    auth = SigV4Auth(Credentials("AKIDEXAMPLE", SECRET), "eks", "us-west-2")
    auth.add_auth(request)
    header = request.headers["Authorization"]
    names = header.split("SignedHeaders=")[1].split(",")[0].split(";")
    scope = Scope.parse(header.split("Credential=")[1].split(",")[0])
    assert scope is not None
    sent = {name.lower(): value for name, value in request.headers.items()} | {"host": urlsplit(url).netloc}
    return (
        SignedRequest(
            method=method,
            path=urlsplit(url).path,
            query=urlsplit(url).query,
            headers={name: sent[name] for name in names},
            body_hash=hashlib.sha256(body).hexdigest(),
            timestamp=request.headers["X-Amz-Date"],
            scope=scope,
        ),
        header.split("Signature=")[1],
    )


@given(
    method=st.sampled_from(["GET", "POST", "DELETE"]),
    path=st.lists(WORDS, max_size=3),
    query=st.dictionaries(WORDS, WORDS, max_size=3),
    header=st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=20),
    body=st.binary(max_size=40),
)
def test_agrees_with_botocore(method: str, path: list[str], query: dict[str, str], header: str, body: bytes) -> None:
    encoded = "/" + "/".join(quote(part, safe="") for part in path)
    pairs = "&".join(f"{quote(key, safe='-_.~')}={quote(value, safe='-_.~')}" for key, value in query.items())
    url = f"http://127.0.0.1:5000{encoded}" + (f"?{pairs}" if pairs else "")
    request, signature = signed_by_botocore(method, url, {"X-K8s-Aws-Id": header}, body)

    assert request.signature(SECRET) == signature
    assert request.matches(signature, SECRET)
    assert not request.matches(signature, SECRET + "x")


@pytest.mark.parametrize("text", ["", "AKID/20260101/us-west-2/eks", "AKID/20260101/us-west-2/eks/aws4", "a/b/c/d/e/f"])
def test_other_scopes_are_none(text: str) -> None:
    assert Scope.parse(text) is None
