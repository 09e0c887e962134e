"""How pytest-xdist shares tests out: a file goes to one worker, as do a folder's files that share a cluster."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling


class ByFile(LoadScopeScheduling):
    """Each file has whichever worker is free; the files of one of `folders` have one worker."""

    def __init__(self, config: pytest.Config, log: Any, folders: Iterable[str] = ()) -> None:
        super().__init__(config, log)
        self._folders = frozenset(folders)

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        folder = Path(file).parent.name
        return folder if folder in self._folders else file


def in_order(items: list[pytest.Item], first: Sequence[str]) -> None:
    """Put what takes longest first, by file or folder: begun last, it is what the other workers' ends wait for."""
    rank = {name: number for number, name in enumerate(first)}
    items.sort(key=lambda item: rank.get(item.path.name, rank.get(item.path.parent.name, len(rank))))
