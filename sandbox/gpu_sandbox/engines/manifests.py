"""An engine's manifests, from its released module: read once, then kept in the user's cache."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from gpu_sandbox.build import GoModule, module_folder
from gpu_sandbox.cache import cache_folder
from gpu_sandbox.engines.catalogue import Engine
from gpu_sandbox.errors import BuildFailed

# The one in C, where PyYAML has it, reads these megabytes ten times as quick.
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def manifests(engine: Engine) -> list[dict[str, Any]]:
    """All objects of the engine's manifests, as they are in its module. Raises GoMissing or BuildFailed."""
    patterns = [*engine.crds, *([engine.webhooks] if engine.webhooks else []), *engine.objects]
    return released(engine.name, engine.module, patterns)


def released(name: str, module: GoModule, patterns: Sequence[str]) -> list[dict[str, Any]]:
    """All objects in the module's files of these paths, which may be patterns.

    The first time it is downloaded by Go: GoMissing or BuildFailed.
    """
    digest = hashlib.sha256(json.dumps([module.sum, [*patterns]]).encode()).hexdigest()[:16]
    kept = cache_folder() / f"manifests-{name}-{digest}.json"
    if not kept.exists():
        objects = list(_read(module_folder(module), patterns))
        # Renamed into place: others see all of it or nothing.
        made = kept.with_suffix(f".{os.getpid()}")
        made.write_text(json.dumps(objects))
        made.replace(kept)
    read: list[dict[str, Any]] = json.loads(kept.read_text())
    return read


def _read(folder: Path, patterns: Iterable[str]) -> Iterator[dict[str, Any]]:
    for pattern in patterns:
        files = sorted(folder.glob(pattern))
        if not files:
            raise BuildFailed(f"the released module in {folder} has no {pattern}")
        for file in files:
            yield from filter(None, yaml.load_all(file.read_text(), _Loader))
