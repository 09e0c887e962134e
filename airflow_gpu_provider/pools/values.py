"""The values of a spec's fields: templates, their form as JSON, and which of them Kubernetes accepts."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

_DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_LABEL_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_LABEL_PREFIX = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")


def is_template(value: Any) -> bool:
    """Return True if `value` holds a Jinja expression that is still to be rendered."""
    if isinstance(value, str):
        return "{{" in value or "{%" in value
    if isinstance(value, Mapping):
        return any(is_template(v) for pair in value.items() for v in pair)
    if isinstance(value, list | tuple):
        return any(is_template(v) for v in value)
    return False


def to_json(value: Any) -> Any:
    """Return a field's value as JSON has it: durations in seconds, tuples as lists."""
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, tuple):
        return [to_json(item) for item in value]
    if isinstance(value, dict):
        return {key: to_json(item) for key, item in value.items()}
    return value


def as_tuple(value: Any) -> Any:
    """Return a list as a tuple, and a single text as a tuple of one; a template stays."""
    if isinstance(value, str):
        return value if is_template(value) else (value,)
    return tuple(value) if isinstance(value, Sequence) else value


def as_constant(value: Any) -> str:
    """Return `ON_DEMAND` for "on-demand"."""
    return str(value).upper().replace("-", "_")


def as_constants(value: Any) -> Any:
    """Return a tuple of constants for one text or several; templates stay."""
    values = as_tuple(value)
    return values if is_template(values) else tuple(map(as_constant, values))


def is_pool_name(value: Any) -> bool:
    """Return True for a DNS label of at most 40 characters."""
    return isinstance(value, str) and len(value) <= 40 and _DNS_LABEL.fullmatch(value) is not None


def are_strings(values: Any) -> bool:
    """Return True for a tuple of texts."""
    return isinstance(values, tuple) and all(isinstance(value, str) for value in values)


def are_group_names(names: Any) -> bool:
    """Return True for names, each once, without white space around them."""
    return len(set(names)) == len(names) and all(isinstance(name, str) and name.strip() == name != "" for name in names)


def are_some_of(known: Sequence[str], values: Sequence[str]) -> bool:
    """Return True for at least one of the known values, each once."""
    return bool(values) and len(set(values)) == len(values) and set(values) <= set(known)


def are_labels(labels: Any) -> bool:
    """Return True for valid Kubernetes labels."""
    return isinstance(labels, dict) and all(_is_label(key, value) for key, value in labels.items())


def _is_label(key: Any, value: Any) -> bool:
    if not isinstance(key, str) or not isinstance(value, str):
        return False
    prefix, slash, name = key.rpartition("/")
    if slash and (len(prefix) > 253 or not _LABEL_PREFIX.fullmatch(prefix)):
        return False
    return _LABEL_NAME.fullmatch(name) is not None and (value == "" or _LABEL_NAME.fullmatch(value) is not None)
