"""Packs code into at most three ConfigMaps, and says how a volume restores the tree of files from them. Pure.

Each map has an index of its files, so that another process that reads the maps of a try mounts the same.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence

from kubernetes.client import models as k8s

from airflow_gpu_provider.cluster.model.pod_state import Json
from airflow_gpu_provider.training.code.code_files import MOST_BYTES, MOST_MAPS, CodeFile, kib, too_large, too_much
from airflow_gpu_provider.untrusted import loads

MOUNT_PATH = "/app"
VOLUME = "gpu-code"

_INDEX = "index.json"
_EXECUTABLE = 0o755
_ENTRY = len('"f0000": ["", 493], ') + len("f0000")
"""What a file takes in its map beside its content and its path: its key, and its entry in the index."""

Contents = Mapping[str, Mapping[str, str]]
"""`data` and `binaryData` of a ConfigMap."""


def pack(files: Sequence[CodeFile]) -> tuple[Contents, ...]:
    """Return the contents of the ConfigMaps for these files: the largest first, each into the first with room.

    Raises:
        CodeUnusable: They need more, or one of them does not fit into a map.
    """
    sizes = {each.path: size_of(each) for each in files}
    maps: list[list[CodeFile]] = []
    for each in sorted(files, key=lambda file: (-sizes[file.path], file.path)):
        of_each = (sum(sizes[file.path] for file in taken) for taken in maps)
        free = (taken for taken, size in zip(maps, of_each, strict=True) if size + sizes[each.path] <= _ROOM)
        room = next(free, None)
        if room is None:
            if sizes[each.path] > _ROOM:
                raise too_large(each.path, sizes[each.path])
            if len(maps) == MOST_MAPS:
                raise too_much(f"The code needs {kib(sum(sizes.values()))} in ConfigMaps", sizes.items())
            maps.append(room := [])
        room.append(each)
    numbers = {each.path: number for number, each in enumerate(files, start=1)}
    return tuple(_contents({f"f{numbers[each.path]:04}": each for each in taken}) for taken in maps)


_ROOM = MOST_BYTES - len(_INDEX) - len("{}")


def size_of(file: CodeFile) -> int:
    """Return the bytes that a file takes in a map; what is not UTF-8 is kept in base64."""
    content = len(file.data) if _text(file.data) is not None else 4 * -(-len(file.data) // 3)
    return content + len(json.dumps(file.path)) + _ENTRY


def volume(maps: Iterable[Json]) -> k8s.V1Volume:
    """Return the projected volume that has the files of these ConfigMaps at their paths."""
    projected = [
        k8s.V1ConfigMapProjection(name=each["metadata"]["name"], items=[*_items(each["data"][_INDEX])]) for each in maps
    ]
    sources = [k8s.V1VolumeProjection(config_map=each) for each in projected]
    return k8s.V1Volume(name=VOLUME, projected=k8s.V1ProjectedVolumeSource(sources=sources))


def _items(index: str) -> Iterator[k8s.V1KeyToPath]:
    for key, (path, mode) in loads(index).items():
        yield k8s.V1KeyToPath(key=key, path=path, mode=mode)


def _contents(files: Mapping[str, CodeFile]) -> Contents:
    texts = {key: _text(each.data) for key, each in files.items()}
    index = {key: [each.path, _EXECUTABLE if each.is_executable else None] for key, each in files.items()}
    return {
        "data": {_INDEX: json.dumps(index), **{key: text for key, text in texts.items() if text is not None}},
        "binaryData": {key: base64.b64encode(files[key].data).decode() for key, text in texts.items() if text is None},
    }


def _text(data: bytes) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None
