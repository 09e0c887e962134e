"""Text and JSON from outside (a pod, an event, a Lease, a person's reason), made safe to keep and to show. Pure.

Airflow keeps events and XComs as JSON, on PostgreSQL as JSONB, which refuses U+0000, halves of surrogate pairs, NaN and
Infinity (PostgreSQL manual, "JSON Types"); its processes pass them on as MessagePack, whose integers have 64 bits. What
it refuses there ends the triggerer of all DAGs. A terminal obeys escape sequences, and embeddings, overrides and
isolates show a text in another order than it has (Unicode Technical Standard 55, "Source Code Handling").
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from typing import Any, TypeVar

LONGEST_TEXT = 4096
"""Characters of a text whose caller names no other bound: a container's termination message has as many bytes."""
DEEPEST = 64
"""How many arrays and objects may be within each other."""

# OSC, DCS, SOS, PM and APC take a string up to their terminator, CSI parameters up to a letter (ECMA-48). Each
# alternative scans on only over what no sequence begins with, so that the whole is linear.
_ESCAPE = re.compile(
    r"\x1b(?:[\]PX^_](?:[^\x07\x1b\x9c\r\n]*+(?:\x07|\x1b\\|\x9c))?|\[[0-?]*[ -/]*[@-~]?|[ -/]*[0-~]?)"
    r"|\x9b[0-?]*[ -/]*[@-~]?"
)
_BREAK = re.compile(r"[\x0b\x0c\x85\u2028\u2029]")
_HIDDEN = re.compile(r"[\x00-\x08\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_HALF_PAIR = re.compile(r"[\ud800-\udfff]")
_WHITESPACE = re.compile(r"\s+")
# By these an object names the class that it is to become where it is read: airflow.sdk.serde, serialize and decode.
_OF_AIRFLOW = ({"__classname__"}, {"__id__"}, {"__type", "__var"})
_INTEGERS = range(-(2**63), 2**64)
_LONGEST_REASON = 200

_Given = TypeVar("_Given")
_T = TypeVar("_T")


class NotStorable(ValueError):
    """JSON that Airflow's database, or its processes, refuse; the message is the reason."""


class NotParsed(ValueError):
    """Something of somebody else's that its reader cannot parse; the message is the reason, in one plain line."""


def plain(text: str, longest: int = LONGEST_TEXT) -> str:
    """Return a text of at most `longest` characters without control characters, escape sequences and hidden order.

    Tabs, line ends and carriage returns stay; what else ends a line or a page becomes a space.
    """
    text = text[:longest]
    if text.isprintable():  # most texts: nothing of what follows is
        return text
    if "\x1b" in text or "\x9b" in text:
        text = _ESCAPE.sub("", text)
    return _HALF_PAIR.sub("\ufffd", _HIDDEN.sub("", _BREAK.sub(" ", text)))


def one_line(text: str, longest: int = LONGEST_TEXT) -> str:
    """Return a plain text in one line, its whitespace as single spaces: for a table, a message, an annotation."""
    return _WHITESPACE.sub(" ", plain(text, longest)).strip()


def finite(number: float) -> float | None:
    """Return a number that JSON knows; None for NaN and the infinities."""
    return number if math.isfinite(number) else None


def storable(value: Any, deepest: int = DEEPEST) -> Any:
    """Return a JSON value in which every text is plain, and None stands for what a database would refuse.

    Texts keep their length; tuples become lists, keys texts. What is no JSON stays as it is. It never raises.
    """
    if isinstance(value, str):
        return plain(value, len(value))
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return value if value in _INTEGERS else None
    if isinstance(value, float):
        return finite(value)
    if deepest <= 0:
        return None
    if isinstance(value, dict):
        return {storable(str(key)): storable(each, deepest - 1) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [storable(each, deepest - 1) for each in value]
    return value


def loads(text: str) -> Any:
    """Return the value of a JSON text that somebody else wrote.

    Raises:
        NotStorable: It is JSON in Python's eyes, and could not be stored: NaN, Infinity, a number beyond 64 bits or
            1e308, U+0000, half of a surrogate pair, keys that are Airflow's own or have control characters, or nesting
            deeper than DEEPEST.
        json.JSONDecodeError: It is no JSON.
    """
    return stored_as_it_is(lambda: json.loads(text, parse_constant=_refused_constant))


def stored_as_it_is(read: Callable[[], _T]) -> _T:
    """Return what `read` has read from JSON, by itself; raises NotStorable as `loads` does, and what `read` raises."""
    try:
        value = read()
    except RecursionError:
        raise NotStorable(f"it is nested deeper than {DEEPEST} levels") from None
    except ValueError as error:
        if "integer string conversion" not in str(error):  # sys.set_int_max_str_digits
            raise
        raise NotStorable("a whole number in it has thousands of digits") from None
    _check(value, DEEPEST)
    return value


def read(given: _Given, parse: Callable[[_Given], _T]) -> _T:
    """Return what `parse`, a pure function, makes of what somebody else wrote, such as an annotation or a Lease.

    Raises:
        NotParsed: Whatever `parse` raised: the caller names the object, and goes on without it.
    """
    try:
        return parse(given)
    except Exception as error:
        reason = one_line(f"{error}", _LONGEST_REASON) or "it is none of its kind"
        raise NotParsed(f"{type(error).__name__}: {reason}") from error


def _refused_constant(name: str) -> Any:
    raise NotStorable(f"{name} is no JSON number")


def _check(value: Any, deepest: int) -> None:
    if isinstance(value, dict | list):
        if not deepest:
            raise NotStorable(f"it is nested deeper than {DEEPEST} levels")
        if isinstance(value, dict):
            _check_keys(value)
        for each in value.values() if isinstance(value, dict) else value:
            _check(each, deepest - 1)
    elif why := _why_not(value):
        raise NotStorable(why)


def _why_not(value: Any) -> str:
    if isinstance(value, str) and ("\x00" in value or _HALF_PAIR.search(value)):
        return "a text in it has U+0000 or half of a surrogate pair"
    if isinstance(value, float) and not math.isfinite(value):
        return "a number in it is greater than 1.8e308"
    if isinstance(value, int) and value not in _INTEGERS:
        return "a whole number in it has more than 64 bits"
    return ""


def _check_keys(value: dict[Any, Any]) -> None:
    if any(isinstance(key, str) and storable(key) != key for key in value):
        raise NotStorable("a key in it has control characters")
    for keys in _OF_AIRFLOW:
        if keys <= value.keys():
            raise NotStorable(f"{' and '.join(sorted(keys))} in it are Airflow's own keys")
