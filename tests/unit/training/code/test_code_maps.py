"""The ConfigMaps of code: within their bounds whatever the files are, and a volume that restores each of them."""

from __future__ import annotations

import base64
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_gpu_provider.errors import CodeUnusable
from airflow_gpu_provider.training.code.code_files import MOST_BYTES, MOST_MAPS, CodeFile
from airflow_gpu_provider.training.code.code_maps import Contents, pack, size_of, volume

KEY = re.compile(r"[-._a-zA-Z0-9]{1,253}")

files = st.lists(
    st.builds(
        CodeFile,
        path=st.text(st.characters(codec="utf-8", exclude_characters="/\0"), min_size=1, max_size=60),
        data=st.one_of(
            st.binary(max_size=50),
            st.text(max_size=50).map(str.encode),
            st.builds(lambda byte, size: byte * size, st.sampled_from([b"x", b"\xff"]), st.integers(0, MOST_BYTES)),
        ),
        is_executable=st.booleans(),
    ),
    max_size=12,
    unique_by=lambda file: file.path,
)


def restored(maps: tuple[Contents, ...]) -> list[CodeFile]:
    """Return what a kubelet writes for the volume of these maps."""
    named: dict[str, Any] = {
        f"m{number}": {"metadata": {"name": f"m{number}"}, **each} for number, each in enumerate(maps)
    }
    found = []
    for source in volume(named.values()).projected.sources:
        of_map = named[source.config_map.name]
        for item in source.config_map.items:
            text, binary = of_map["data"].get(item.key), of_map["binaryData"].get(item.key, "")
            data = base64.b64decode(binary) if text is None else text.encode()
            found.append(CodeFile(path=item.path, data=data, is_executable=item.mode == 0o755))
    return found


@given(files)
def test_each_file_is_restored_or_all_are_refused(given_files: list[CodeFile]) -> None:
    try:
        maps = pack(given_files)
    except CodeUnusable:
        sizes = [size_of(each) for each in given_files]
        # First fit refuses a file only where it does not fit beside what each of the maps has.
        assert sum(sizes) + (MOST_MAPS - 1) * max(sizes) > MOST_MAPS * (MOST_BYTES - 20)
        return
    assert sorted(restored(maps), key=lambda file: file.path) == sorted(given_files, key=lambda file: file.path)
    assert len(maps) <= MOST_MAPS
    for each in maps:
        entries = {**each["data"], **each["binaryData"]}
        assert sum(len(key) + len(value.encode()) for key, value in entries.items()) <= MOST_BYTES
        assert all(map(KEY.fullmatch, entries))


@pytest.mark.parametrize("data", [b"x" * MOST_BYTES, b"\xff" * (3 * MOST_BYTES // 4)])
def test_a_file_that_no_map_can_have_is_refused_by_name(data: bytes) -> None:
    with pytest.raises(CodeUnusable, match=r"model\.pt .* 701 KiB .*may have 700 KiB, or 525 KiB if it is not"):
        pack([CodeFile(path="model.pt", data=data)])
