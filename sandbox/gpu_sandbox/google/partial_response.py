"""Partial responses: the system parameter `fields`, like "skus(description,category/usageType),nextPageToken".

As "Partial responses" of Google's REST APIs has it, without wildcards: a list's fields are those of its items.
"""

from __future__ import annotations

import re
from typing import Any

from gpu_sandbox.google.errors import invalid

_Mask = dict[str, "_Mask"]
_TOKEN = re.compile(r"[A-Za-z_]+|[(),/]")


def masked(answer: Any, fields: str) -> Any:
    """What of an answer the mask names. INVALID_ARGUMENT if it is no mask, or names a field that the answer lacks."""
    tokens = _TOKEN.findall(fields)
    if "".join(tokens) != fields:
        raise invalid("Request contains an invalid argument.")
    mask = _selection(tokens)
    if tokens:
        raise invalid("Request contains an invalid argument.")
    return _apply(answer, mask)


def _selection(tokens: list[str]) -> _Mask:
    """Read a comma-separated selection off the tokens, up to its closing parenthesis."""
    mask: _Mask = {}
    while True:
        mask |= _path(tokens)
        if not tokens or tokens[0] != ",":
            return mask
        tokens.pop(0)


def _path(tokens: list[str]) -> _Mask:
    name = tokens.pop(0) if tokens else ""
    if not name.isidentifier():
        raise invalid("Request contains an invalid argument.")
    after = tokens[0] if tokens else ""
    if after == "/":
        tokens.pop(0)
        return {name: _path(tokens)}
    if after == "(":
        tokens.pop(0)
        inner = _selection(tokens)
        if not tokens or tokens.pop(0) != ")":
            raise invalid("Request contains an invalid argument.")
        return {name: inner}
    return {name: {}}


def _apply(value: Any, mask: _Mask) -> Any:
    if not mask:
        return value
    if isinstance(value, list):
        return [_apply(item, mask) for item in value]
    if not isinstance(value, dict) or not mask.keys() <= value.keys():
        raise invalid("Request contains an invalid argument.")
    return {name: _apply(value[name], inner) for name, inner in mask.items()}
