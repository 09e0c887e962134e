"""The project's addresses in the package's metadata: of the repository that the package is built from.

A release has its repository in the variables that GitHub Actions sets (.github/workflows/release.yml); any other host's
may be set likewise. What is built elsewhere, on a developer's machine say, has no addresses. An sdist carries its own
into the wheels that are built from it. The sandbox has this file as sandbox/project_urls.py.

An index shows the README without the repository around it: there its links and pictures lead to the repository, too.
"""

from __future__ import annotations

import os
import re
from email import message_from_string
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_RELATIVE = re.compile(r"(!?)(\[[^\]]*\])\((?![a-z]+:|#)([^)\s]+)\)")


class ProjectUrls(MetadataHookInterface):
    """Fills in `urls` and `readme`."""

    PLUGIN_NAME = "custom"

    def update(self, metadata: dict[str, Any]) -> None:
        root = Path(self.root)
        metadata["urls"] = _of_the_sdist(root) or _of_the_repository(metadata["version"])
        text = (root / "README.md").read_text()
        if source := metadata["urls"].get("Source"):
            text = readme_of_an_index(text, source, f"v{metadata['version']}")
        metadata["readme"] = {"content-type": "text/markdown", "text": text}


def readme_of_an_index(text: str, source: str, tag: str) -> str:
    """The README with each relative link to the page of its file, and each picture to the file itself, at the tag."""
    return _RELATIVE.sub(lambda it: f"{it[1]}{it[2]}({source}/{'raw' if it[1] else 'blob'}/{tag}/{it[3]})", text)


def _of_the_sdist(root: Path) -> dict[str, str]:
    written = root / "PKG-INFO"
    if not written.is_file():
        return {}
    found = message_from_string(written.read_text()).get_all("Project-URL", [])
    return dict(each.split(", ", 1) for each in found)


def _of_the_repository(version: str) -> dict[str, str]:
    server, repository = os.environ.get("GITHUB_SERVER_URL"), os.environ.get("GITHUB_REPOSITORY")
    if not server or not repository:
        return {}
    source = f"{server}/{repository}"
    return {
        "Documentation": f"{source}/blob/v{version}/docs/index.md",
        "Changelog": f"{source}/blob/v{version}/CHANGELOG.md",
        "Source": source,
        "Issues": f"{source}/issues",
    }
