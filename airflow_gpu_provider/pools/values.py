"""The values of a spec's fields: templates, their form as JSON, which of them Kubernetes accepts, and like ones."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import Field, dataclass, fields
from datetime import UTC, datetime, timedelta
from typing import Any, Self

from airflow_gpu_provider.errors import PoolSpecError

_PLAIN = "Use plain values; for a value that is known only at run time, use a Jinja expression."
_DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_LABEL_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_LABEL_PREFIX = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")


def named_twice(named: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with fields that name groups, with what to do: a group is in them more than once."""
    names = [name for groups in named.values() if not is_template(groups) for name in groups]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        yield f"{', '.join(twice)} is named in {' and '.join(named)}", "Name each group once."


def are_prices(prices: Any, markets: Collection[str]) -> bool:
    """Whether it is a price of 0 or more, one for each of some markets, or None; Jinja expressions may be either."""
    if isinstance(prices, dict):
        return all((is_template(key) or key in markets) and _is_price(price) for key, price in prices.items())
    return prices is None or _is_price(prices)


def _is_price(price: Any) -> bool:
    if is_template(price):
        return True
    return isinstance(price, int | float) and not isinstance(price, bool) and 0 <= price < math.inf


def is_template(value: Any) -> bool:
    """Return True if `value` holds a Jinja expression that is still to be rendered."""
    if isinstance(value, str):
        return "{{" in value or "{%" in value
    if isinstance(value, Mapping):
        return any(is_template(v) for pair in value.items() for v in pair)
    if isinstance(value, list | tuple):
        return any(is_template(v) for v in value)
    return False


def closest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that is most like this one; None if none is like it."""
    from difflib import get_close_matches  # which a file without a mistake need not load

    return next(iter(get_close_matches(name, [*known], n=1)), None)


_YEARS = range(1971, 2200)  # others a cloud's switch, and arithmetic with times, do not know


def time_of(text: str) -> datetime:
    """Read a time in ISO 8601, in UTC where it names no zone; raises ValueError."""
    return in_utc_if_naive(datetime.fromisoformat(text))


def in_utc_if_naive(at: datetime) -> datetime:
    """Return a time with its zone, UTC where it names none; raises ValueError before 1971 and after 2199."""
    if at.year not in _YEARS:
        raise ValueError(f"{at} is none of a machine's times")
    return at if at.tzinfo else at.replace(tzinfo=UTC)


def is_whole(value: Any) -> bool:
    """Return True for a whole number, also as the digits that a Variable or a rendered template gives."""
    if isinstance(value, str):
        return value.strip().isdecimal()
    return isinstance(value, int) and not isinstance(value, bool)


def _not_plain(value: Any) -> str:
    """Return the name of the type of a part that is not plain data; empty where all is."""
    if isinstance(value, Mapping):
        return next(filter(None, map(_not_plain, (part for pair in value.items() for part in pair))), "")
    if isinstance(value, tuple):
        return next(filter(None, map(_not_plain, value)), "")
    return "" if value is None or isinstance(value, str | int | float | timedelta) else type(value).__name__


def to_json(value: Any) -> Any:
    """Return a field's value as JSON has it: durations in seconds, tuples as lists."""
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, tuple):
        return [to_json(item) for item in value]
    if isinstance(value, dict):
        return {key: to_json(item) for key, item in value.items()}
    return value


def as_plain(value: Any) -> Any:
    """Return an object with the lists in it as tuples, which is how a spec holds them."""
    if isinstance(value, Mapping):
        return {key: as_plain(item) for key, item in value.items()}
    return tuple(map(as_plain, value)) if isinstance(value, list | tuple) else value


def as_bool(value: Any) -> Any:
    """Return what a word for true or false means, as a rendered template or a Variable gives it; all else stays."""
    return {"true": True, "false": False}.get(value.strip().lower(), value) if isinstance(value, str) else value


def as_whole(value: Any) -> int:
    """Return a whole number; raises TypeError or ValueError for what is none."""
    if isinstance(value, bool) or int(value) != float(value):
        raise ValueError(value)
    return int(value)


def as_duration(value: Any) -> timedelta:
    """Return a duration; a text has seconds. Raises TypeError, ValueError or OverflowError for what is none."""
    return value if isinstance(value, timedelta) else timedelta(seconds=float(value))


def in_seconds(spec: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a spec's values with the numbers among its durations as texts of seconds, which JSON and templates give.

    A DAG's author gives a timedelta: 6 would be taken for hours.
    """
    durations = {each.name for each in fields(spec) if str(each.type).startswith("timedelta")}
    are_seconds = {name for name in durations & values.keys() if type(values[name]) in (int, float)}
    return {name: str(value) if name in are_seconds else value for name, value in values.items()}


def as_tuple(value: Any) -> Any:
    """Return a list as a tuple, a single text as a tuple of one, None as an empty one; a template stays."""
    if value is None:
        return ()
    if isinstance(value, str):
        return value if is_template(value) else (value,)
    return tuple(value) if isinstance(value, Sequence) else value


def as_constant(value: Any) -> str:
    """Return `ON_DEMAND` for "on-demand"."""
    return str(value).upper().replace("-", "_")


def as_constants(value: Any) -> Any:
    """Return a tuple of constants for one text or several; templates stay."""
    values = as_tuple(value)
    return tuple(map(as_constant, values)) if are_strings(values) and not is_template(values) else values


def is_dns_label(value: Any, *, at_most: int = 63) -> bool:
    """Return True for what Kubernetes takes as a namespace, of at most 63 characters (RFC 1123)."""
    return isinstance(value, str) and len(value) <= at_most and _DNS_LABEL.fullmatch(value) is not None


def is_currency_code(value: Any) -> bool:
    """Return True for what has the form of a currency's ISO 4217 code."""
    return isinstance(value, str) and re.fullmatch(r"[A-Z]{3}", value) is not None


def is_dns_subdomain(value: Any) -> bool:
    """Return True for what Kubernetes takes as the name of most objects: lower-case DNS labels and dots (RFC 1123)."""
    return isinstance(value, str) and len(value) <= 253 and _LABEL_PREFIX.fullmatch(value) is not None


def are_strings(values: Any) -> bool:
    """Return True for a tuple of texts."""
    return isinstance(values, tuple) and all(isinstance(value, str) for value in values)


def is_list(of_a_spec: Field[Any]) -> bool:
    """Return True for a field of a spec that holds a list, whose parts may be given as one text too."""
    return str(of_a_spec.type).startswith("Sequence[")


def type_problems(spec: Any) -> Iterator[tuple[str, str]]:
    """Yield what is of no type that its field may have, with its fix: an object, no list, or neither true nor false."""
    values = vars(spec)
    for each in fields(spec):
        value = values[each.name]
        if kind := _not_plain(value):  # an XComArg would make every task with this spec depend on one
            yield f"{each.name} holds a {kind}", _PLAIN
        if each.type == "bool" and not isinstance(value, bool) and not is_template(value):
            yield f"{each.name}={value!r} must be True or False", "Correct the pool's spec."
        if is_list(each) and not are_strings(value) and not is_template(value):
            yield f"{each.name}={value!r} must be a list of strings", 'Write it as ["...", "..."], or leave it out.'


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


# -- taints, in kubectl's notation and in that of the clouds' APIs --------------------------------------------------

_CLOUD_EFFECTS = {"NoSchedule": "NO_SCHEDULE", "PreferNoSchedule": "PREFER_NO_SCHEDULE", "NoExecute": "NO_EXECUTE"}
"""The effects of taints, and how EKS and GKE spell them."""

_EFFECTS = {cloud: ours for ours, cloud in _CLOUD_EFFECTS.items()}


@dataclass(frozen=True, kw_only=True)
class Taint:
    """A node taint; `str()` is kubectl's notation `key=value:Effect`."""

    key: str
    value: str
    effect: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `key=value:Effect` or `key:Effect`; raises PoolSpecError."""
        head, colon, effect = text.rpartition(":")
        key, _, value = head.partition("=")
        if not colon or effect not in _CLOUD_EFFECTS or not key:
            known = tuple(_CLOUD_EFFECTS)
            raise PoolSpecError(
                f"{text!r} is not a taint.", f"Write it as key=value:Effect, the effect one of {known}."
            )
        return cls(key=key, value=value, effect=effect)

    @classmethod
    def of_json(cls, raw: Mapping[str, Any]) -> Self:
        """Read a taint as Kubernetes' objects have it."""
        return cls(key=raw["key"], value=raw.get("value") or "", effect=raw["effect"])

    @property
    def in_the_cloud(self) -> dict[str, str]:
        """The taint as EKS and GKE spell it."""
        return {"key": self.key, "value": self.value, "effect": _CLOUD_EFFECTS[self.effect]}

    def __str__(self) -> str:
        return f"{self.key}={self.value}:{self.effect}"


def taints_from_cloud(taints: Iterable[Mapping[str, Any]]) -> Iterator[Taint]:
    """Yield taints that EKS or GKE describes; those with an effect that Kubernetes does not have are left out."""
    for taint in taints:
        if taint["effect"] in _EFFECTS:
            yield Taint(key=taint["key"], value=taint.get("value") or "", effect=_EFFECTS[taint["effect"]])
