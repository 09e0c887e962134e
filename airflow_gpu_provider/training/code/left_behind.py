"""Which files of a code folder stay where they are: what ignore files name, and what never travels."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from pathspec import GitIgnoreSpec

from airflow_gpu_provider.errors import CodeUnusable

AIRFLOWIGNORE: Final = ".airflowignore"
GPUIGNORE: Final = ".gpuignore"
"""The files that name what is left out, in any folder. The second is read after the first, and may take back of it."""

Syntax = Literal["glob", "regexp"]
"""Of .airflowignore: the option `[core] dag_ignore_file_syntax`. That of .gpuignore is gitignore's, which glob is."""

SECRET: Final = "secret"
MADE_BY_PYTHON: Final = "made by Python"
NO_FILE: Final = "neither file nor folder"
"""A FIFO, a socket or a device."""

Why = Literal["secret", ".airflowignore", ".gpuignore", "made by Python", "neither file nor folder"]

_SECRETS = GitIgnoreSpec.from_lines(
    (
        *(".git", ".env", ".env.*", "*.env", ".envrc"),
        *("*.key", "*.p12", "*.pfx", "*.jks", "*.keystore", "*.ppk", "*.kdbx"),
        *("id_rsa", "id_dsa", "id_ecdsa", "id_ed25519", ".ssh", ".gnupg"),
        *(".aws", ".azure", ".kube", ".docker", ".config", ".cache", ".kaggle", ".huggingface", "kubeconfig"),
        *(".netrc", ".pgpass", ".pypirc", ".npmrc", ".git-credentials", ".vault-token"),
        *(".boto", ".s3cfg", ".databrickscfg", "*.tfstate*"),
        *("kaggle.json", "credentials.json", "application_default_credentials.json"),
    )
)
"""Of names in lower case: so that ID_RSA is one too."""

_HEADER = rb"(?:(?:\s|\\[rn]){1,4}[A-Za-z-]+: [^\n\\]{0,120}){0,4}"
_PRIVATE_KEY = re.compile(
    rb"-----BEGIN [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----" + _HEADER + rb"[^-]{0,300}?[A-Za-z0-9+/]{32}",
)
"""A private key in PEM or OpenPGP's armour, in a JSON file too; not a program that only names the first line of one.

Lines such as `DEK-Info: AES-128-CBC,...` stand before the content of an encrypted one (RFC 1421).
"""

_USER = re.compile(rb'"type"\s*:\s*"authorized_user"')
_REFRESH_TOKEN = re.compile(rb'"refresh_token"\s*:\s*"[^"]{8}')

_MADE = GitIgnoreSpec.from_lines(("__pycache__", "*.py[co]"))


def is_secret(path: str) -> bool:
    """Return True for a path, relative to its bundle, whose names are those of credentials or of a repository."""
    return _SECRETS.match_file(path.lower())


def has_secret(data: bytes) -> bool:
    """Return True for a file with a private key or a Google user's refresh token, in UTF-8 or UTF-16."""
    data = data.replace(b"\0", b"")  # in UTF-16 each second byte of ASCII is one
    is_user = _USER.search(data) is not None and _REFRESH_TOKEN.search(data) is not None
    return is_user or _PRIVATE_KEY.search(data) is not None


@dataclass(frozen=True)
class _Patterns:
    """The patterns of one ignore file, and the folder that it is in, relative to the code's."""

    source: Why
    folder: str
    ignores: GitIgnoreSpec | tuple[re.Pattern[str], ...]

    def decide(self, path: str) -> bool | None:
        """Return True where the path is left out, False where it is taken back, and None otherwise."""
        if isinstance(self.ignores, GitIgnoreSpec):
            return self.ignores.check_file(path.removeprefix(self.folder)).include
        return True if any(each.search(path.rstrip("/")) for each in self.ignores) else None


@dataclass(frozen=True)
class Rules:
    """What is left out of a folder: by the ignore files in it, and in the folders above it, down from the code's."""

    patterns: Sequence[_Patterns] = ()

    def of_folder(self, folder: Path, name: str, syntax: Syntax) -> Rules:
        """Return the rules for a folder, whose ignore files are read; `name` is "" or ends with a slash."""
        return Rules((*self.patterns, *_read(folder, name, syntax)))

    def why(self, path: str) -> Why | None:
        """Return why a path is left out, a folder's with a slash at its end; None where it travels."""
        if is_secret(path):
            return SECRET
        if _MADE.match_file(path):
            return MADE_BY_PYTHON
        why: Why | None = None
        for each in self.patterns:
            decided = each.decide(path)
            if decided is not None:
                why = each.source if decided else None
        return why


def _read(folder: Path, name: str, syntax: Syntax) -> Iterator[_Patterns]:
    if (file := folder / AIRFLOWIGNORE).is_file():
        lines = [*map(_without_comment, _lines(file, name))]
        yield _Patterns(AIRFLOWIGNORE, name, _compiled(lines, syntax))
    if (file := folder / GPUIGNORE).is_file():
        yield _Patterns(GPUIGNORE, name, GitIgnoreSpec.from_lines(_lines(file, name)))


def _lines(file: Path, folder: str) -> list[str]:
    try:
        return file.read_text("utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise CodeUnusable(f"{folder}{file.name} of the code is not UTF-8.", "Save it as UTF-8.") from error


def _without_comment(line: str) -> str:
    """Return a line as Airflow reads it: other than in gitignore's syntax a comment may follow a pattern."""
    return line.partition("#")[0].rstrip() if "#" in line else line


def _compiled(lines: Sequence[str], syntax: Syntax) -> GitIgnoreSpec | tuple[re.Pattern[str], ...]:
    if syntax == "regexp":
        return tuple(re.compile(line) for line in lines if line)
    return GitIgnoreSpec.from_lines(lines)
