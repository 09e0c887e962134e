"""Parts of a spec: options that are valid only together, as one mapping in the author's DAG.

A field is a part if its default is an empty TypedDict: `disk: EksDisk = field(default_factory=EksDisk)`. The form names
the keys and their types; nothing has to be imported to write one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from functools import cache
from typing import Any, get_type_hints, is_typeddict

from airflow_gpu_provider.pools.values import are_strings, as_bool, as_tuple, as_whole, closest, is_template

Convert = Callable[[Callable[[Any], Any], str, Any], Any]
"""Converts a value, by the function and for the name given, or raises the spec's error."""

_FIX = "Correct the pool's spec."


@cache
def forms_of(spec: type) -> Mapping[str, Mapping[str, Any]]:
    """Return the parts of a spec's class: the types of their keys, by field."""
    forms = {each.name: each.default_factory for each in fields(spec)}
    return {name: get_type_hints(form) for name, form in forms.items() if is_typeddict(form)}


def known_keys(spec: type, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return a spec's values without the keys of its parts that this release does not have."""
    forms = forms_of(spec)
    return {name: _known(value, forms[name]) if name in forms else value for name, value in given.items()}


def _known(value: Any, form: Mapping[str, Any]) -> Any:
    return {key: value[key] for key in value if key in form} if isinstance(value, Mapping) else value


def as_part(name: str, form: Mapping[str, Any], value: Any, convert: Convert) -> Any:
    """Return a part with its values converted to their types, and without those that are None; a template stays."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        return value
    given = {key: each for key, each in value.items() if each is not None}
    return {key: _converted(f"{name}[{key!r}]", form.get(key), each, convert) for key, each in given.items()}


def _converted(name: str, kind: Any, value: Any, convert: Convert) -> Any:
    if not isinstance(value, str | int | float | list | tuple):
        return value  # which is refused as no plain value
    if kind is int:
        return convert(as_whole, name, value)
    if kind is bool:
        return as_bool(value)
    return as_tuple(value) if isinstance(value, list) or _is_list(kind) else value


def _is_list(kind: Any) -> bool:
    return getattr(kind, "__args__", ()) == (str,)


def part_problems(spec: Any) -> Iterator[tuple[str, str]]:
    """Yield what no part of the spec can be, with its fix: no mapping, an unknown key, a value of another type."""
    for name, form in forms_of(spec.__class__).items():
        value = vars(spec)[name]
        if isinstance(value, Mapping):
            yield from _key_problems(name, form, value)
        elif not is_template(value):
            yield f"{name}={value!r} must be a mapping", f"Give {_one_of(form)}, like {name}={_example(form)}."


def _key_problems(name: str, form: Mapping[str, Any], given: Mapping[Any, Any]) -> Iterator[tuple[str, str]]:
    for key, value in given.items():
        if is_template(key):
            yield f"{name}: the key {key!r} is a template", f"Give {_one_of(form)}; their values may be templates."
        elif key not in form:
            near = closest(str(key), form)
            yield f"{name} has no {key!r}", f"Did you mean {near!r}?" if near else f"Give {_one_of(form)}."
        elif not (is_template(value) or _fits(form[key], value)):
            yield f"{name}[{key!r}]={value!r} must be {_WANTED.get(form[key], 'a list of strings')}", _FIX


_WANTED = {bool: "True or False", str: "a string", int: "a whole number"}


def _fits(kind: Any, value: Any) -> bool:
    return are_strings(value) if _is_list(kind) else isinstance(value, kind)


def _one_of(form: Mapping[str, Any]) -> str:
    return " or ".join(map(repr, form)) if len(form) < 3 else f"some of {', '.join(map(repr, form))}"


def _example(form: Mapping[str, Any]) -> str:
    return f"{{{next(iter(form))!r}: ...}}"
