"""botocore's service models, held to AWS's answers as they are sent: JSON or XML, before a client reads past the rest.

botocore holds requests to the same models. Errors are held to the list that the operation's model has, and to those
that every operation of its protocol may answer; EC2's models list none, so its codes are the documented ones.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from http import HTTPStatus
from typing import Any
from xml.etree import ElementTree

from botocore.exceptions import UnknownServiceError
from botocore.model import ListShape, MapShape, OperationModel, Shape, StructureShape
from moto.core.utils import get_service_model

from gpu_sandbox.schemas.findings import judge, note

# "Common Errors" of the services' API references, and what their front doors say of a signature: JSON's services with
# the suffix, those of the query protocol without it (the words that botocore's retries and clients know them by).
_COMMON = frozenset(
    {
        *("IncompleteSignature", "InternalFailure", "InvalidAction", "InvalidClientTokenId", "MalformedQueryString"),
        *("MissingAction", "MissingParameter", "NotAuthorized", "OptInRequired", "RequestExpired"),
        *("ServiceUnavailable", "ThrottlingException", "ValidationError"),
    }
)
_OF_JSON = _COMMON | {
    *("AccessDeniedException", "ExpiredTokenException", "InvalidSignatureException", "UnknownOperationException"),
    *("MissingAuthenticationTokenException", "UnrecognizedClientException", "ValidationException"),
}
_OF_QUERY = _COMMON | {
    *("AccessDenied", "ExpiredToken", "InternalError", "InvalidParameterCombination", "InvalidParameterValue"),
    *("MissingAuthenticationToken", "SignatureDoesNotMatch", "Throttling"),
}
# "Error codes for the Amazon EC2 API": the common ones, and of each resource that an error may be about its own.
_OF_EC2 = frozenset(
    {
        *("AuthFailure", "DryRunOperation", "IdempotentParameterMismatch", "IncompleteSignature", "InternalError"),
        *("InternalFailure", "InvalidAction", "InvalidClientTokenId", "InvalidPaginationToken", "InvalidParameter"),
        *("InvalidParameterCombination", "InvalidParameterValue", "InvalidState", "MalformedQueryString"),
        *("MissingAction", "MissingAuthenticationToken", "MissingParameter", "OptInRequired", "RequestExpired"),
        *("RequestLimitExceeded", "ServiceUnavailable", "SignatureDoesNotMatch", "Unavailable"),
        *("UnauthorizedOperation", "UnknownParameter", "UnsupportedOperation", "ValidationError"),
        *("IncorrectInstanceState", "IncorrectState", "OperationNotPermitted", "ResourceCountExceeded"),
        *("InsufficientInstanceCapacity", "InstanceLimitExceeded", "VcpuLimitExceeded", "Unsupported"),
        *("MaxSpotInstanceCountExceeded", "SpotMaxPriceTooLow", "InsufficientFreeAddressesInSubnet"),
        *("InvalidInstanceType", "InvalidFilter", "InvalidNextToken", "InvalidTagKey.Malformed", "TagLimitExceeded"),
        *("DependencyViolation", "InvalidPermission.Duplicate", "InvalidPermission.NotFound"),
        *("InvalidGroup.Duplicate", "InvalidGroup.InUse", "InvalidGroup.NotFound", "InvalidGroupId.Malformed"),
        *("InvalidLaunchTemplateId.Malformed", "InvalidLaunchTemplateId.NotFound"),
        *("InvalidLaunchTemplateId.VersionNotFound", "InvalidLaunchTemplateName.AlreadyExistsException"),
        *("InvalidLaunchTemplateName.NotFoundException", "InvalidLaunchTemplateName.MalformedException"),
        *("InvalidPlacementGroup.Duplicate", "InvalidPlacementGroup.InUse", "InvalidPlacementGroup.Unknown"),
        *("InvalidAMIID.Malformed", "InvalidAMIID.NotFound", "InvalidAMIID.Unavailable"),
        *("InvalidInstanceID.Malformed", "InvalidInstanceID.NotFound", "InvalidSnapshot.NotFound"),
        *("InvalidInternetGatewayID.NotFound", "InvalidRouteTableID.NotFound", "NatGatewayNotFound"),
        *("InvalidSubnet", "InvalidSubnet.Conflict", "InvalidSubnet.Range", "InvalidSubnetID.NotFound"),
        *("InvalidVpcID.NotFound", "InvalidVpcRange", "InvalidKeyPair.NotFound", "InvalidVolume.NotFound"),
        *("InvalidCapacityReservationId.NotFound", "CapacityReservationNotFound", "ReservationCapacityExceeded"),
    }
)
_BY_PROTOCOL = {"json": _OF_JSON, "rest-json": _OF_JSON, "query": _OF_QUERY, "ec2": _OF_EC2}
# What AWS was seen to answer, though the models do not have it: the status of an instance whose end waits for a
# lifecycle hook, in logs of describe-scaling-activities; a cluster that does not exist
# (terraform-aws-modules/terraform-aws-eks#793).
_VALUES_BESIDE = {"ScalingActivityStatusCode": frozenset({"MidTerminatingLifecycleAction"})}
_ERRORS_BESIDE = {("eks", "CreateNodegroup"): {"ResourceNotFoundException": HTTPStatus.NOT_FOUND}}
_XML = ("query", "ec2")
_IN_HEADERS = ("header", "headers", "statusCode", "uri", "querystring")


def judge_answer(service: str, operation: str, http_status: int, headers: Mapping[str, str], body: bytes) -> None:
    """Hold one answer to its operation's model, and note what was found.

    `service` is botocore's name of it; what botocore does not know is not judged. Names of `headers` are in lower case.
    """
    try:
        model = get_service_model(service)
    except UnknownServiceError:
        return
    subject, call = "AWS answer" if http_status < 300 else "AWS error", f"{service}:{operation}"
    if operation not in model.operation_names:
        note(subject, call, [f"{service} has no such operation"])
        return
    described: OperationModel = model.operation_model(operation)
    if http_status == HTTPStatus.NOT_IMPLEMENTED:
        note("AWS request", call, ["the sandbox lacks this operation"])
    elif http_status < 300:
        judge(subject, call, lambda: wrong_in_answer(described, body))
    else:
        judge(subject, call, lambda: wrong_in_error(described, http_status, headers, body))


def wrong_in_answer(operation: OperationModel, body: bytes) -> Iterator[str]:
    """Yield what is wrong with an answer's body."""
    protocol, shape = operation.service_model.metadata["protocol"], operation.output_shape
    if protocol in _XML:
        yield from _wrong_in_xml_answer(operation, ElementTree.fromstring(body))
    elif shape is None or not body.strip():
        if body.strip() not in (b"", b"{}"):
            yield "the operation answers nothing"
    else:
        yield from _in_json(shape, json.loads(body), "answer")


def wrong_in_error(
    operation: OperationModel, http_status: int, headers: Mapping[str, str], body: bytes
) -> Iterator[str]:
    """Yield what is wrong with an error: its code is one that the operation may answer, with its HTTP status."""
    protocol = operation.service_model.metadata["protocol"]
    code = _code_in_xml(body) if protocol in _XML else _code_in_json(headers, body)
    listed = _statuses(operation)
    if code in listed:
        wanted = listed[code]
        if wanted not in (None, http_status):
            yield f"error {code} has HTTP status {wanted}, not {http_status}"
    elif code not in _BY_PROTOCOL[protocol]:
        yield f"{code or 'no code'} is none of the operation's errors"


def _statuses(operation: OperationModel) -> dict[str, int | None]:
    """The operation's errors by code, with their HTTP status where the model says it."""
    described = {shape.name: shape.metadata.get("error", {}) for shape in operation.error_shapes}
    listed = {each.get("code", name): each.get("httpStatusCode") for name, each in described.items()}
    return listed | _ERRORS_BESIDE.get((operation.service_model.service_name, operation.name), {})


def _code_in_xml(body: bytes) -> str:
    return str(ElementTree.fromstring(body).findtext(".//{*}Error/{*}Code") or "")


def _code_in_json(headers: Mapping[str, str], body: bytes) -> str:
    told = json.loads(body or b"{}")
    code = headers.get("x-amzn-errortype") or told.get("__type") or told.get("code") or ""
    return str(code).partition(":")[0].rpartition("#")[2]


# JSON


def _in_json(shape: Shape, value: Any, where: str) -> Iterator[str]:
    if value is None:
        return  # as good as left out, and AWS does so
    if isinstance(shape, StructureShape):
        yield from _structure_in_json(shape, value, where)
    elif isinstance(shape, ListShape):
        if not isinstance(value, list):
            yield f"{where} is {value!r}, no list"
            return
        for index, each in enumerate(value):
            yield from _in_json(shape.member, each, f"{where}[{index}]")
    elif isinstance(shape, MapShape):
        if not isinstance(value, dict):
            yield f"{where} is {value!r}, no map"
            return
        for key, each in value.items():
            yield from _in_json(shape.key, key, f"{where} key")
            yield from _in_json(shape.value, each, f"{where}.{key}")
    else:
        yield from _scalar(shape, value, where, _JSON_TYPES)


def _structure_in_json(shape: StructureShape, value: Any, where: str) -> Iterator[str]:
    if shape.is_document_type:
        return
    if not isinstance(value, dict):
        yield f"{where} is {value!r}, no structure"
        return
    members = _members(shape)
    for name, each in value.items():
        if name in members:
            yield from _in_json(members[name], each, f"{where}.{name}")
        else:
            yield f"{where}.{name} is unknown"
    yield from _missing(shape, members, {name for name, each in value.items() if each is not None}, where)


def _members(shape: StructureShape) -> dict[str, Shape]:
    """A structure's members in the body, by the names that they are sent by."""
    return {
        member.serialization.get("name", name): member
        for name, member in shape.members.items()
        if member.serialization.get("location") not in _IN_HEADERS
    }


def _missing(shape: StructureShape, members: Mapping[str, Shape], given: set[str], where: str) -> Iterator[str]:
    names = {id(member): sent for sent, member in members.items()}
    for required in shape.required_members:
        sent = names.get(id(shape.members[required]))
        if sent is not None and sent not in given:
            yield f"{where}.{sent} is missing"


# XML


def _wrong_in_xml_answer(operation: OperationModel, root: ElementTree.Element) -> Iterator[str]:
    shape = operation.output_shape
    envelope = {"requestId", "ResponseMetadata"}
    if operation.service_model.metadata["protocol"] == "ec2":
        of_answer = [child for child in root if _tag(child) not in envelope]
        if shape is not None:
            yield from _structure_in_xml(shape, of_answer, "answer")
        elif any(_tag(child) != "return" for child in of_answer):
            yield "the operation answers nothing"
        return
    wrapper = shape.serialization.get("resultWrapper") if shape is not None else None
    expected = envelope | ({wrapper} if wrapper else {f"{operation.name}Result"})
    yield from (f"answer has {_tag(child)}, unknown" for child in root if _tag(child) not in expected)
    result = next((child for child in root if _tag(child) == wrapper), None)
    if wrapper and result is None:
        yield f"answer.{wrapper} is missing"
    elif result is not None and shape is not None:
        yield from _structure_in_xml(shape, list(result), "answer")


def _tag(element: ElementTree.Element) -> str:
    return element.tag.rpartition("}")[2]


def _in_xml(shape: Shape, element: ElementTree.Element, where: str) -> Iterator[str]:
    children = list(element)
    if isinstance(shape, StructureShape):
        if not children and (element.text or "").strip():
            yield f"{where} is {element.text!r}, no structure"
        yield from _structure_in_xml(shape, children, where)
    elif isinstance(shape, ListShape):
        wanted = shape.member.serialization.get("name", "member")
        for index, child in enumerate(children):
            if _tag(child) == wanted:
                yield from _in_xml(shape.member, child, f"{where}[{index}]")
            else:
                yield f"{where} has {_tag(child)}, its members are named {wanted}"
    elif isinstance(shape, MapShape):
        for child in children:
            yield from _entry_in_xml(shape, child, where)
    elif children:
        yield f"{where} has {_tag(children[0])}, and is a {shape.type_name}"
    else:
        yield from _scalar(shape, element.text or "", where, _XML_TYPES)


def _entry_in_xml(shape: MapShape, entry: ElementTree.Element, where: str) -> Iterator[str]:
    names = shape.key.serialization.get("name", "key"), shape.value.serialization.get("name", "value")
    if sorted(map(_tag, entry)) != sorted(names):
        yield f"{where} has an entry of {[_tag(child) for child in entry]}, not of {names}"
        return
    for child in entry:
        yield from _in_xml(shape.key if _tag(child) == names[0] else shape.value, child, f"{where} {_tag(child)}")


def _structure_in_xml(shape: StructureShape, children: list[ElementTree.Element], where: str) -> Iterator[str]:
    members, given = _members(shape), set[str]()
    flattened = {
        member.member.serialization.get("name", name) if isinstance(member, ListShape) else name: member
        for name, member in members.items()
        if member.serialization.get("flattened")
    }
    for child in children:
        name = _tag(child)
        if name in flattened:
            member = flattened[name]
            yield from _in_xml(member.member if isinstance(member, ListShape) else member, child, f"{where}.{name}")
        elif name not in members:
            yield f"{where}.{name} is unknown"
        elif name in given:
            yield f"{where}.{name} is there twice"
        else:
            yield from _in_xml(members[name], child, f"{where}.{name}")
        given.add(name)
    yield from _missing(shape, members, given, where)


# Values


def _matches(pattern: str) -> Callable[[Any], bool]:
    compiled = re.compile(pattern)
    return lambda value: isinstance(value, str) and compiled.fullmatch(value) is not None


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


_is_time = _matches(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:?\d\d)")
_is_text = _matches(r"(?s).*")
_JSON_TYPES: Mapping[str, Callable[[Any], bool]] = {
    "blob": _is_text,
    "boolean": lambda value: isinstance(value, bool),
    "double": _is_number,
    "float": _is_number,
    "integer": _is_integer,
    "long": _is_integer,
    "string": _is_text,
    "timestamp": lambda value: _is_number(value) or _is_time(value),
}
_XML_TYPES: Mapping[str, Callable[[Any], bool]] = {
    "blob": _is_text,
    "boolean": _matches("true|false"),
    "double": _matches(r"-?\d+(\.\d+)?([eE][+-]?\d+)?"),
    "float": _matches(r"-?\d+(\.\d+)?([eE][+-]?\d+)?"),
    "integer": _matches(r"-?\d+"),
    "long": _matches(r"-?\d+"),
    "string": _is_text,
    "timestamp": _is_time,
}


def _scalar(shape: Shape, value: Any, where: str, types: Mapping[str, Callable[[Any], bool]]) -> Iterator[str]:
    enum = shape.metadata.get("enum")
    if not types[shape.type_name](value):
        yield f"{where} is {value!r}, no {shape.type_name}"
    elif enum and value not in enum and value not in _VALUES_BESIDE.get(shape.name, ()):
        yield f"{where} is {value!r}, which is none of its values"
