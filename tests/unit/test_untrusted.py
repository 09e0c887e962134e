"""What others write is made plain, storable or refused, in linear time."""

from __future__ import annotations

import json
import time
import unicodedata
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_gpu_provider.errors import GpuError, PodFailed
from airflow_gpu_provider.untrusted import NotStorable, loads, one_line, plain, storable

TEXT = st.text(st.characters(codec=None), max_size=50) | st.text(
    "\x1b[]1;m\x07\\Px \r\n\x9b\u202e\x00\ud800", max_size=50
)
NUMBERS = st.integers() | st.floats()
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.tuples(inner, inner) | st.dictionaries(TEXT, inner, max_size=3),
)


def nested(levels: int) -> str:
    return "[" * levels + "]" * levels


def is_plain(text: str) -> bool:
    kept = {"\t", "\n", "\r"}
    hidden = ("\u202a", "\u202b", "\u202c", "\u202d", "\u202e", "\u2066", "\u2067", "\u2068", "\u2069")
    return all(each in kept or unicodedata.category(each) not in ("Cc", "Cs") for each in text) and not any(
        each in text for each in hidden
    )


@given(TEXT)
def test_a_plain_text_has_nothing_hidden(text: str) -> None:
    assert is_plain(plain(text))
    assert plain(plain(text)) == plain(text)
    assert not set(one_line(text)) & set("\n\r\t")


@given(st.text(st.characters(codec="utf-8", exclude_categories=("C", "Zl", "Zp")), max_size=50))
def test_what_is_plain_stays(text: str) -> None:
    assert plain(text) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred\x1b[0m", "red"),
        ("esc \x1b]8;;https://elsewhere.example\x07click\x1b]8;;\x1b\\ \x1b[2Jend", "esc click end"),
        ("a\x00b", "ab"),
        ("half \ud800", "half \ufffd"),
        ("user\u202etxt.exe", "usertxt.exe"),
        ("one\x0ctwo\u2028three", "one two three"),
        ("\x1b]0;a title without an end\nline", "0;a title without an end\nline"),
    ],
)
def test_what_a_terminal_would_obey_is_left_out(text: str, shown: str) -> None:
    assert plain(text) == shown


def test_a_text_has_a_bound() -> None:
    assert plain("x" * 10, 4) == "xxxx"


@given(VALUES)
def test_whatever_is_storable_is_json_for_everybody(value: Any) -> None:
    kept = storable(value)
    text = json.dumps(kept, allow_nan=False)
    assert "\\u0000" not in text
    assert loads(text) == kept
    assert storable(kept) == kept
    text.encode()


@given(VALUES)
def test_an_error_is_storable(value: Any) -> None:
    error = PodFailed(str(value), str(value), value=value, last_lines=[str(value)])
    record = error.to_record()
    assert storable(record) == record
    assert GpuError.from_record(record).what == error.what


@pytest.mark.parametrize(
    "text",
    [
        "NaN",
        "[1, Infinity]",
        "1e999",
        '"\\u0000"',
        '{"\\ud800": 1}',
        '{"a\\u001b": 1, "a": 2}',
        '{"__id__": "x", "v": 1}',
        '[{"__classname__": "x"}]',
        '{"__type": "airflow.sdk.definitions.asset.Asset", "__var": {}}',
        "9" * 30,
        "1" * 5000,
        nested(65),
        nested(8000),
    ],
)
def test_json_that_a_database_refuses_is_refused(text: str) -> None:
    with pytest.raises(NotStorable):
        loads(text)


@given(st.text(max_size=50))
def test_what_is_no_json_is_a_decode_error_or_storable(text: str) -> None:
    try:
        value = loads(text)
    except (json.JSONDecodeError, NotStorable):
        return
    json.dumps(value, allow_nan=False)


@pytest.mark.parametrize(
    "piece", ["\x1b[", "\x1b]", "\x1b[1", "\x1bP1", "\x9b", "\x00", "1", " ", "[", "\ud800", "é\u202e"]
)
def test_a_megabyte_costs_no_second(piece: str) -> None:
    text = (piece * 2**20)[: 2**20]
    began = time.process_time()
    one_line(text, len(text))
    assert time.process_time() - began < 1
