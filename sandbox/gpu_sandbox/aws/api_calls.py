"""What an HTTP request asks of AWS: its operation, and the parameters as botocore's model names them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qs

from moto.core.parse import PROTOCOL_PARSERS
from moto.core.request import Request, determine_request_protocol
from moto.core.routing import get_service_router
from moto.core.utils import get_service_model
from werkzeug.exceptions import NotFound


class WsgiRequest(Request):
    from_wsgi_server = True


def operation_of(environ: Mapping[str, Any], service: str) -> str:
    """The operation's name, by the service's protocol; `?` for none that the service has."""
    if target := environ.get("HTTP_X_AMZ_TARGET"):
        return str(target).rpartition(".")[2]
    body = environ["wsgi.input"].getvalue().decode(errors="replace")
    if action := parse_qs(f"{environ.get('QUERY_STRING', '')}&{body}").get("Action"):
        return action[0]
    try:
        operation, _ = get_service_router(service).match(WsgiRequest(dict(environ)))
    except (NotFound, NotImplementedError, LookupError):
        return "?"
    return str(operation.name)


def parameters_of(environ: Mapping[str, Any], service: str, operation: str) -> dict[str, Any]:
    """What the operation is called with. The request can be read again afterwards."""
    request = WsgiRequest(dict(environ))
    model = get_service_model(service)
    protocol = determine_request_protocol(model, request.content_type)
    in_path: Mapping[str, Any] = get_service_router(service).match(request)[1] if protocol.startswith("rest") else {}
    parser = PROTOCOL_PARSERS[protocol](model.operation_model(operation))
    parsed: dict[str, Any] = parser.parse(
        {
            "method": request.method,
            "values": request.values,
            "headers": request.headers,
            "body": request.get_data(),
            "url_path": request.path,
            "url_params": dict(in_path),
        }
    )
    environ["wsgi.input"].seek(0)
    return parsed
