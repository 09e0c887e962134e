"""What a report must not hold: whose account it was, where it is reached, and with what. Pure.

Names that are known (the cluster's, the project's) are replaced wherever they stand; the rest is told by its form.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_HEX = "[0-9a-fA-F]{1,4}"
_BASE64 = "A-Za-z0-9+/_="

_FORMS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("certificate", re.compile(r"-----BEGIN [A-Z ]+-----.*?(?:-----END [A-Z ]+-----|\Z)", re.S)),
    ("arn", re.compile(r"\barn:aws[\w-]*:[^\s,;|`'\"()<>]+")),
    ("url", re.compile(r"\b(?:https?|wss?)://[^\s,;|`'\"()<>]+")),
    ("email", re.compile(r"\b[\w.+-]+@[\w-]+(?:\.[\w-]+)+")),
    ("token", re.compile(r"\b(?:k8s-aws-v1\.|ya29\.|eyJ)[\w.=+/-]+")),
    ("token", re.compile(r"(?i)\b(?:bearer|basic)\s+[\w.~+/=-]{8,}")),
    ("access-key", re.compile(r"\b(?:AKIA|ASIA|AROA|AIDA|ANPA|ABIA|ACCA)[A-Z0-9]{12,}\b")),
    ("node", re.compile(r"\b(?:ip-\d{1,3}(?:-\d{1,3}){3}|i-[0-9a-f]{6,})(?:\.[\w.-]+)?\b")),
    # GKE's names of machines and their groups, in which a known name may have been replaced before.
    ("node", re.compile(r"\bgke-(?:[a-z0-9-]|<[\w-]+>)*-[0-9a-f]{8}-[0-9a-z]{3,4}\b(?:\.[\w-]+)*")),
    ("host", re.compile(r"\b[\w-]+(?:\.[\w-]+)*\.(?:amazonaws\.com(?:\.cn)?|compute\.internal|ec2\.internal|goog)\b")),
    ("host", re.compile(r"\b[\w-]+(?:\.[\w-]+)*\.(?:googleapis\.com|internal|local)\b")),
    ("aws-id", re.compile(r"\b(?:subnet|sg|vpc|lt|eni|vol|ami|rtb|igw|nat|eipalloc|eks-cluster-sg)-[0-9a-f]{6,}\b")),
    ("uuid", re.compile(r"\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b")),
    ("ip", re.compile(r"\b(?:\d{1,3}\.){3}\d{1,3}(?:/\d{1,2})?\b")),
    ("ip", re.compile(rf"(?<![\w:])(?:{_HEX}:){{7}}{_HEX}|(?<![\w:])(?:{_HEX}(?::{_HEX})*)?::(?:(?:{_HEX}:)*{_HEX})?")),
    ("account", re.compile(r"(?<![\d.])\d{12}(?![\d.])")),
    ("secret", re.compile(rf"(?<![{_BASE64}])(?=[{_BASE64}]*\d)(?=[{_BASE64}]*[A-Za-z])[{_BASE64}]{{40,}}")),
)


def redacted(text: str, names: Mapping[str, str] | None = None) -> str:
    """Return the text with a word in angle brackets in place of each secret.

    Args:
        text: Any text.
        names: What each known name is, by the name: `{"k8s-ml": "cluster"}`. Names shorter than three characters are
            left alone: they would stand in every second word.
    """
    for name in sorted(names or {}, key=len, reverse=True):
        if len(name) >= 3:
            text = re.sub(rf"(?<![A-Za-z0-9]){re.escape(name)}(?![A-Za-z0-9])", f"<{(names or {})[name]}>", text)
    for word, form in _FORMS:
        text = form.sub(f"<{word}>", text)
    return text
