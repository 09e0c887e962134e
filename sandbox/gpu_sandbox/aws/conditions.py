"""The Condition element of an IAM policy, evaluated as IAM's reference of policy elements says.

An operator that is not known here is an error, and so is a key that the request says nothing of: neither is ignored.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

Context = Mapping[str, Sequence[str]]
"""The values of each condition key that a request has, by the key in lower case: IAM does not look at case in keys."""

# Their values are always a list, which only ForAllValues and ForAnyValue compare.
_MULTIVALUED = {"aws:tagkeys"}
_SET_OPERATORS = {"forallvalues": all, "foranyvalue": any}


class UnsupportedPolicy(Exception):
    """A policy that the sandbox cannot evaluate as AWS would."""


def as_list(value: Any) -> list[Any]:
    """The JSON of a policy has one thing or a list of them."""
    return list(value) if isinstance(value, (list, tuple)) else [value]


@lru_cache
def _glob(pattern: str, flags: int) -> re.Pattern[str]:
    if "${" in pattern:
        raise UnsupportedPolicy(f"policy variables are not evaluated here: {pattern}")
    return re.compile("".join({"*": ".*", "?": "."}.get(one, re.escape(one)) for one in pattern), flags | re.DOTALL)


def like(value: str, pattern: str, flags: int = 0) -> bool:
    """Compare with `*` and `?` as wildcards, and no other."""
    return _glob(pattern, flags).fullmatch(value) is not None


def arn_like(value: str, pattern: str) -> bool:
    """Compare the six parts of two ARNs: no wildcard reaches beyond its own part."""
    if pattern == "*":
        return True
    parts, patterns = value.split(":", 5), pattern.split(":", 5)
    return len(parts) == len(patterns) and all(map(like, parts, patterns))


def _equals(value: str, wanted: str) -> bool:
    return value == _plain(wanted)


def _plain(wanted: str) -> str:
    if "${" in wanted:
        raise UnsupportedPolicy(f"policy variables are not evaluated here: {wanted}")
    return wanted


def _number(compare: Callable[[float, float], bool]) -> Callable[[str, str], bool]:
    return lambda value, wanted: compare(float(value), float(wanted))


_COMPARE: dict[str, Callable[[str, str], bool]] = {
    "stringequals": _equals,
    "stringequalsignorecase": lambda value, wanted: value.lower() == _plain(wanted).lower(),
    "stringlike": like,
    "arnequals": arn_like,
    "arnlike": arn_like,
    "bool": lambda value, wanted: value.lower() == wanted.lower(),
    "numericequals": _number(operator.eq),
    "numericlessthan": _number(operator.lt),
    "numericlessthanequals": _number(operator.le),
    "numericgreaterthan": _number(operator.gt),
    "numericgreaterthanequals": _number(operator.ge),
}
_NEGATED = {
    "stringnotequals": "stringequals",
    "stringnotequalsignorecase": "stringequalsignorecase",
    "stringnotlike": "stringlike",
    "arnnotequals": "arnequals",
    "arnnotlike": "arnlike",
    "numericnotequals": "numericequals",
}


def check(conditions: Mapping[str, Mapping[str, Any]]) -> None:
    """UnsupportedPolicy if an operator is not known here."""
    for name in conditions:
        _, _, base = name.lower().rpartition(":")
        base = base.removesuffix("ifexists")
        if base != "null" and base not in _COMPARE and base not in _NEGATED:
            raise UnsupportedPolicy(f"condition operator {name} is not evaluated here")


def keys_of(conditions: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The condition keys that are looked at."""
    return [key for by_key in conditions.values() for key in by_key]


def hold(conditions: Mapping[str, Mapping[str, Any]], context: Context) -> bool:
    """Whether all of them do: each operator and each key of it. UnsupportedPolicy if one is not known here."""
    check(conditions)
    return all(
        _holds(name, key, [str(one).lower() if isinstance(one, bool) else str(one) for one in as_list(wanted)], context)
        for name, by_key in conditions.items()
        for key, wanted in by_key.items()
    )


def _holds(name: str, key: str, wanted: Sequence[str], context: Context) -> bool:
    values = context.get(key.lower())
    over, _, base = name.lower().rpartition(":")
    if base == "null":
        return any((values is None) == (one == "true") for one in wanted)
    positive = base.removesuffix("ifexists")
    if positive != base and values is None:
        return True
    negated = positive in _NEGATED
    compare = _COMPARE[_NEGATED.get(positive, positive)]

    def matches(value: str) -> bool:
        return any(compare(value, one) for one in wanted) is not negated

    if over:
        if over not in _SET_OPERATORS:
            raise UnsupportedPolicy(f"condition operator {name} is not evaluated here")
        return _SET_OPERATORS[over](map(matches, values or ()))
    if key.lower() in _MULTIVALUED:
        raise UnsupportedPolicy(f"{key} has many values: {name} needs ForAllValues or ForAnyValue before it")
    return negated if values is None else matches(_only(key, values))


def _only(key: str, values: Iterable[str]) -> str:
    found = list(values)
    if len(found) != 1:
        raise UnsupportedPolicy(f"{key} has the values {found}, and the condition compares one")
    return found[0]
