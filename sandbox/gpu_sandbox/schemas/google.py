"""Google's discovery documents, as google-api-python-client ships them, held to requests and answers.

JSON is judged as protobuf's JSON mapping has it (protobuf.dev/programming-guides/json): names in camel case, 64-bit
integers, durations and times as strings. What a document leaves open stays open: it says nothing of errors, whose form
is google.rpc.Status's (cloud.google.com/apis/design/errors).
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from http import HTTPStatus
from importlib import resources
from typing import Any
from urllib.parse import parse_qsl, unquote

from google.cloud.container_v1.types import NodePool
from google.rpc import code_pb2

from gpu_sandbox.schemas.findings import judge, note

_APIS = ("compute.v1", "container.v1", "cloudresourcemanager.v1", "iamcredentials.v1", "cloudbilling.v1")
_DOCUMENTS = "googleapiclient.discovery_cache.documents"
_CODES = frozenset(code_pb2.Code.keys())
_CONTAINER = "container:v1"

Check = Callable[[Any, str], Iterator[str]]
"""Of a value and where it stands; yields what is wrong."""


@dataclass(frozen=True, kw_only=True)
class Method:
    """One API method as its document describes it."""

    id: str
    path: re.Pattern[str]
    path_parameters: Mapping[str, Mapping[str, Any]]
    query_parameters: Mapping[str, Mapping[str, Any]]
    body: Check | None
    answer: Check | None


class Discovery:
    """The methods of some APIs, each compiled when it is first found."""

    def __init__(self, documents: Sequence[Mapping[str, Any]]) -> None:
        self._sources: dict[tuple[str, int], list[_Source]] = defaultdict(list)
        self._compiled: dict[str, Method] = {}
        for document in documents:
            schemas = _Schemas(document["schemas"], has_numbers=document["id"] == _CONTAINER)
            common = document["parameters"]
            for method in _methods_of(document):
                template = f"/{document['servicePath']}{method.get('flatPath', method['path'])}"
                source = _Source(method=method, template=template, schemas=schemas, common=common)
                self._sources[method["httpMethod"], template.count("/")].append(source)

    def find(self, http_method: str, path: str) -> Method | None:
        """Return the method that has this path, None if none has."""
        for source in self._sources[http_method, path.count("/")]:
            if _pattern(source.template).fullmatch(path):
                name = source.method["id"]
                if name not in self._compiled:
                    self._compiled[name] = _compile(source)
                return self._compiled[name]
        return None


@cache
def discovery() -> Discovery:
    """The documents of the APIs that the sandbox plays. Read once: they are five megabytes."""
    folder = resources.files(_DOCUMENTS)
    return Discovery([json.loads((folder / f"{api}.json").read_bytes()) for api in _APIS])


def judge_call(http_method: str, target: str, content: bytes, http_status: int, answer: Any) -> None:
    """Hold one call to its method's schemas, and note what was found."""
    path, _, query = target.partition("?")
    call = f"{http_method} {path}"
    method = discovery().find(http_method, path)
    if method is None:
        note("Google request", call, ["the API has no such method"])
        return
    judge("Google request", method.id, lambda: wrong_in_request(method, path, query, content))
    if http_status == HTTPStatus.OK:
        judge("Google answer", method.id, lambda: wrong_in_answer(method, answer))
    else:
        judge("Google error", method.id, lambda: wrong_in_error(http_status, answer))


def wrong_in_request(method: Method, path: str, query: str, content: bytes) -> Iterator[str]:
    """Yield what is wrong with a request: `path` as it was sent, `query` without its question mark."""
    match = method.path.fullmatch(path)
    for name, value in (match.groupdict() if match else {}).items():
        if parameter := method.path_parameters.get(name):
            yield from _parameter(parameter, unquote(value), f"path parameter {name}")
    given = parse_qsl(query, keep_blank_values=True)
    for name, value in given:
        # A system parameter may be written with a dollar: cloud.google.com/apis/docs/system-parameters.
        known = method.query_parameters.get(name)
        if known is not None:
            yield from _parameter(known, value, f"query parameter {name}")
        elif name.removeprefix("$") not in method.query_parameters:
            yield f"query parameter {name} is unknown"
    missing = {name for name, each in method.query_parameters.items() if each.get("required")} - dict(given).keys()
    yield from (f"query parameter {name} is missing" for name in sorted(missing))
    try:
        body = json.loads(content or b"{}")
    except ValueError as error:
        yield f"the body is no JSON: {error}"
        return
    if method.body is not None:
        yield from method.body(body, "body")
    elif body:
        yield "the method takes no body"


def wrong_in_answer(method: Method, body: Any) -> Iterator[str]:
    """Yield what is wrong with the body of a 200."""
    if method.answer is None:
        if body:
            yield "the method answers nothing"
    else:
        yield from method.answer(body, "answer")


def wrong_in_error(http_status: int, body: Any) -> Iterator[str]:
    """Yield what is wrong with an error: its code is that of HTTP, its status one of google.rpc.Code's names."""
    error = body.get("error") if isinstance(body, Mapping) else None
    if not isinstance(error, Mapping):
        yield "no object is named error"
        return
    if error.get("code") != http_status:
        yield f"error.code is {error.get('code')!r}, HTTP's status {http_status}"
    if error.get("status") not in _CODES:
        yield f"error.status is {error.get('status')!r}, no name of google.rpc.Code"
    if not isinstance(error.get("message"), str):
        yield f"error.message is {error.get('message')!r}, no string"
    yield from (
        f"error.{name} is unknown" for name in error.keys() - {"code", "message", "status", "details", "errors"}
    )


# Compiling


def _methods_of(document: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield from document.get("methods", {}).values()
    for resource in document.get("resources", {}).values():
        yield from _methods_of(resource)


@dataclass(frozen=True, kw_only=True)
class _Source:
    """A method as its document has it; `common` are the parameters of all methods."""

    method: Mapping[str, Any]
    template: str
    schemas: _Schemas
    common: Mapping[str, Any]


@cache
def _pattern(template: str) -> re.Pattern[str]:
    return re.compile(re.sub(r"\\{(\w+)\\}", r"(?P<\1>[^/:]+)", re.escape(template)))


def _compile(source: _Source) -> Method:
    method, schemas = source.method, source.schemas
    parameters = method.get("parameters", {})
    of_query = {name: each for name, each in parameters.items() if each["location"] == "query"}
    return Method(
        id=method["id"],
        path=_pattern(source.template),
        path_parameters={name: each for name, each in parameters.items() if each["location"] == "path"},
        query_parameters={**source.common, **of_query},
        body=schemas.request(method["request"]["$ref"], method["id"]) if "request" in method else None,
        answer=schemas.answer(method["response"]["$ref"]) if "response" in method else None,
    )


class _Schemas:
    """The schemas of one document, each compiled when a value first needs it."""

    def __init__(self, schemas: Mapping[str, Mapping[str, Any]], *, has_numbers: bool) -> None:
        self._schemas = schemas
        self._has_numbers = has_numbers
        self._compiled: dict[tuple[str, str], Check] = {}

    def request(self, name: str, method: str) -> Check:
        """`method` by its id: what is required differs by it."""
        return lambda value, where: self._named(name, method)(value, where)

    def answer(self, name: str) -> Check:
        return self.request(name, "")

    def _named(self, name: str, method: str) -> Check:
        found = self._compiled.get((name, method))
        if found is None:
            found = self._compiled[name, method] = self._object(self._schemas[name], method, name)
        return found

    def _check(self, schema: Mapping[str, Any], method: str, field: tuple[str, str] = ("", "")) -> Check:
        """`field` is the name of the schema that has this one, and the field's name in it."""
        if "$ref" in schema:
            return self.request(schema["$ref"], method)
        kind = schema.get("type")
        if kind == "object":
            return self._object(schema, method, "")
        if kind == "array":
            item = self._check(schema["items"], method, field)
            return lambda value, where: _each(item, value, where)
        if not method:
            return _scalar(schema)
        numbers = _enumerations().get(field, {}) if self._has_numbers and "enum" in schema else {}
        return _scalar_of_request(_scalar(schema), schema, numbers)

    def _object(self, schema: Mapping[str, Any], method: str, owner: str) -> Check:
        properties = {
            name: self._check(each, method, (owner, name)) for name, each in schema.get("properties", {}).items()
        }
        others = self._check(schema["additionalProperties"], method) if "additionalProperties" in schema else None
        required = [
            name
            for name, each in schema.get("properties", {}).items()
            if method and method in each.get("annotations", {}).get("required", ())
        ]

        def check(value: Any, where: str) -> Iterator[str]:
            if not isinstance(value, Mapping):
                yield f"{where} is {value!r}, no object"
                return
            for name, each in value.items():
                one = properties.get(name, others)
                if one is None:
                    yield f"{where}.{name} is unknown"
                else:
                    yield from one(each, f"{where}.{name}")
            yield from (f"{where}.{name} is missing" for name in required if name not in value)

        return check


def _each(item: Check, value: Any, where: str) -> Iterator[str]:
    if not isinstance(value, list):
        yield f"{where} is {value!r}, no array"
        return
    for index, each in enumerate(value):
        yield from item(each, f"{where}[{index}]")


@cache
def _enumerations() -> Mapping[tuple[str, str], Mapping[int, str]]:
    """The names of GKE's enumerations by their numbers, by message and field.

    A document has only the names; parsers take both, and GKE's client library sends numbers.
    """
    found: dict[tuple[str, str], Mapping[int, str]] = {}
    messages = list(NodePool.meta.pb.DESCRIPTOR.file.message_types_by_name.values())
    for message in messages:
        messages += message.nested_types
        for name, field in message.fields_by_camelcase_name.items():
            if field.enum_type is not None:
                values = field.enum_type.values_by_number
                found[message.name, name] = {number: value.name for number, value in values.items()}
    return found


# Values


def _is_integer(low: int, high: int) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def _is_integer_string(low: int, high: int) -> Callable[[Any], bool]:
    return lambda value: (
        isinstance(value, str) and re.fullmatch(r"-?\d+", value) is not None and low <= int(value) <= high
    )


def _matches(pattern: str) -> Callable[[Any], bool]:
    compiled = re.compile(pattern)
    return lambda value: isinstance(value, str) and compiled.fullmatch(value) is not None


def _is_base64(value: Any) -> bool:
    if not isinstance(value, str):
        return False
    try:
        base64.b64decode(value.translate({ord("-"): "+", ord("_"): "/"}), validate=True)
    except binascii.Error:
        return False
    return True


_FORMATS: Mapping[tuple[str, str | None], Callable[[Any], bool]] = {
    ("integer", "int32"): _is_integer(-(2**31), 2**31 - 1),
    ("integer", "uint32"): _is_integer(0, 2**32 - 1),
    ("string", "int64"): _is_integer_string(-(2**63), 2**63 - 1),
    ("string", "uint64"): _is_integer_string(0, 2**64 - 1),
    ("string", "byte"): _is_base64,
    ("string", "google-datetime"): _matches(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?(Z|[+-]\d\d:\d\d)"),
    ("string", "google-duration"): _matches(r"-?\d+(\.\d{1,9})?s"),
}
_TYPES: Mapping[str, Callable[[Any], bool]] = {
    "any": lambda value: True,
    "boolean": lambda value: isinstance(value, bool),
    "integer": _is_integer(-(2**63), 2**63 - 1),
    "number": lambda value: (
        (isinstance(value, (int, float)) and not isinstance(value, bool)) or value in ("NaN", "Infinity", "-Infinity")
    ),
    "string": lambda value: isinstance(value, str),
}


def _scalar(schema: Mapping[str, Any]) -> Check:
    kind, form = str(schema["type"]), schema.get("format")
    is_right = _FORMATS.get((kind, form)) or _TYPES[kind]
    enum = frozenset(schema["enum"]) if "enum" in schema else None
    wanted = f"{form} {kind}" if form else kind

    def check(value: Any, where: str) -> Iterator[str]:
        if not is_right(value):
            yield f"{where} is {value!r}, no {wanted}"
        elif enum is not None and value not in enum:
            yield f"{where} is {value!r}, which is none of its values"

    return check


def _scalar_of_request(check: Check, schema: Mapping[str, Any], numbers: Mapping[int, str]) -> Check:
    """As a parser takes it: numbers for 64-bit integers, though no API writes them so, and for enumerations."""
    if schema.get("format") in ("int64", "uint64"):
        return lambda value, where: check(str(value) if _TYPES["integer"](value) else value, where)
    return lambda value, where: check(numbers.get(value, value) if _TYPES["integer"](value) else value, where)


def _parameter(parameter: Mapping[str, Any], text: str, where: str) -> Iterator[str]:
    """Yield what is wrong with a parameter, which always is text."""
    kind = parameter["type"]
    if kind == "boolean" and text not in ("true", "false"):
        yield f"{where} is {text!r}, no boolean"
    elif kind == "integer" and not _is_within(text, parameter):
        yield f"{where} is {text!r}, no integer that it takes"
    elif "pattern" in parameter and not re.fullmatch(parameter["pattern"], text):
        yield f"{where} is {text!r}, which does not match {parameter['pattern']}"
    elif "enum" in parameter and text not in parameter["enum"]:
        yield f"{where} is {text!r}, which is none of its values"


def _is_within(text: str, parameter: Mapping[str, Any]) -> bool:
    if re.fullmatch(r"-?\d+", text) is None:
        return False
    return int(parameter.get("minimum", "-2147483648")) <= int(text) <= int(parameter.get("maximum", "4294967295"))
