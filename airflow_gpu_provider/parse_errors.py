"""Why a text cannot be parsed, and where, without the text: kubeconfigs, keys and user data hold secrets. Pure.

Parsers quote what they read: PyYAML the line, int() and a look-up in a dictionary the value, and errors of Unicode keep
all of it. Errors of this package are shown in logs, XComs and notifications, in each with the errors that caused them.
"""

from __future__ import annotations

import json
import re
import ssl
from binascii import Error as Base64Error
from collections.abc import Callable
from typing import Any, TypeVar

from airflow_gpu_provider.untrusted import NotParsed

T = TypeVar("T")

# repr() of a text or of bytes, as messages have it. Of one character it stays: a syntax error's cause.
_QUOTED = re.compile(r"""b?(?:'((?:[^'\\]|\\.)*)'|"((?:[^"\\]|\\.)*)")""")
_UNCLOSED = re.compile(r"""['"].*""", re.S)
_YAML_TOKEN = re.compile(r"'(<[a-z -]+>)'")
_TOML_PLACE = re.compile(r"\s*\(at (line \d+, column \d+|end of document)\)$")
_LONGEST_PATH = 255


def parsed(parse: Callable[[str], T], text: str) -> T:
    """Return what a parser makes of a text: `json.loads`, `yaml.safe_load`, `tomllib.loads`.

    Raises:
        NotParsed: It is not in that format. The parser's error is neither its cause nor its context.
    """
    try:
        return parse(text)
    except Exception as error:  # noqa: BLE001 - PyYAML's constructors raise whatever Python does
        problem = problem_of(error)
    raise NotParsed(problem)


def problem_of(error: BaseException) -> str:
    """Return what an error reports about a text, a file or a key that could not be read, without quoting any of it.

    Of an error that is not known here only the type is named, for its message may have anything in it.
    """
    if isinstance(error, NotParsed):
        return str(error)
    if isinstance(error, OSError) and not isinstance(error, ssl.SSLError):
        return _of_file(error)
    if isinstance(error, UnicodeError):
        return _of_encoding(error)
    if isinstance(error, json.JSONDecodeError):
        return f"line {error.lineno}, column {error.colno}: {_unquoted(error.msg)}"
    if isinstance(error, ssl.SSLError | Base64Error):
        return _unquoted(error.reason if isinstance(error, ssl.SSLError) and error.reason else str(error))
    return _of_yaml(error) or _of_toml(error) or type(error).__name__


def path_in_words(path: object) -> str:
    """Return a file's path, or that it is none: a key may have been put where its file is to be named."""
    text = str(path)
    is_path = text.isprintable() and len(text) <= _LONGEST_PATH and "-----BEGIN" not in text
    return text if is_path else "a text that is no path"


def kind_of(value: object) -> str:
    """Return what a value of JSON, YAML or TOML is, in place of the value."""
    kinds = ((bool, "true or false"), (int | float, "a number"), (str, "a text"), (dict, "an object"))
    found = (words for kind, words in kinds if isinstance(value, kind))
    return next(found, "a list" if isinstance(value, list | tuple) else f"a {type(value).__name__}")


def _unquoted(message: str) -> str:
    def shortened(quoted: re.Match[str]) -> str:
        inner = quoted[1] or quoted[2] or ""
        return quoted[0] if len(inner.removeprefix("\\")) <= 1 else "…"

    text = _QUOTED.sub(shortened, message)
    rest = _QUOTED.sub("", text)
    return _UNCLOSED.sub("…", text) if _UNCLOSED.search(rest) else text


def _of_file(error: OSError) -> str:
    why = error.strerror or type(error).__name__
    return why if error.filename is None else f"{why}: {path_in_words(error.filename)}"


def _of_encoding(error: UnicodeError) -> str:
    encoding, start = getattr(error, "encoding", "the right encoding"), getattr(error, "start", None)
    return f"it is not in {encoding}" + ("" if start is None else f", at position {start}")


def _of_yaml(error: BaseException) -> str:
    import yaml
    from yaml.reader import ReaderError

    if isinstance(error, ReaderError):
        return f"position {error.position}: a character that YAML does not allow"
    if not isinstance(error, yaml.MarkedYAMLError):
        return ""
    problem = _unquoted(_YAML_TOKEN.sub(r"\1", error.problem or error.context or "no YAML"))
    mark: Any = error.problem_mark or error.context_mark
    return problem if mark is None else f"line {mark.line + 1}, column {mark.column + 1}: {problem}"


def _of_toml(error: BaseException) -> str:
    import tomllib

    if not isinstance(error, tomllib.TOMLDecodeError):
        return ""
    message = str(error)
    place = _TOML_PLACE.search(message)
    problem = _unquoted(_TOML_PLACE.sub("", message))
    return f"{place[1]}: {problem}" if place else problem
