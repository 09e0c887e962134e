"""The project's addresses in the package's metadata: of the repository that the package is built from.

A release says where its repository is, in the variables that GitHub Actions sets (.github/workflows/release.yml); any
other host's may be set likewise. What is built elsewhere, on a developer's machine say, has no addresses. An sdist
carries its own into the wheels that are built from it.
"""

from __future__ import annotations

import os
from email import message_from_string
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface


class ProjectUrls(MetadataHookInterface):
    """Fills in `urls`."""

    PLUGIN_NAME = "custom"

    def update(self, metadata: dict[str, Any]) -> None:
        metadata["urls"] = _of_the_sdist(Path(self.root)) or _of_the_repository(metadata["version"])


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
