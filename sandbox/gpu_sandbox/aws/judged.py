"""AWS's endpoint with a validator that checks every answer against botocore's model before it is sent."""

from __future__ import annotations

import io
from collections.abc import Iterable
from typing import Any

from gpu_sandbox.aws.api_calls import operation_of
from gpu_sandbox.aws.server import AwsApi, Environ, StartResponse, signed_call
from gpu_sandbox.schemas.aws import judge_answer


class JudgedApi:
    """A WSGI application. An unsigned call is of no service, and is not judged."""

    def __init__(self, api: AwsApi) -> None:
        self._api = api

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        length = int(environ.get("CONTENT_LENGTH") or 0)
        environ["wsgi.input"] = io.BytesIO(environ["wsgi.input"].read(length))
        sent: list[tuple[str, list[tuple[str, str]]]] = []

        def start(status: str, headers: list[tuple[str, str]], *exc_info: Any) -> Any:
            sent.append((status, headers))
            return start_response(status, headers, *exc_info)

        body = b"".join(self._api(environ, start))
        call = signed_call(environ)
        if call is not None:
            ((status, headers),) = sent
            lower = {name.lower(): value for name, value in headers}
            judge_answer(call.service, operation_of(environ, call.service), int(status.split()[0]), lower, body)
        return [body]
