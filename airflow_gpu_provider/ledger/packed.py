"""Long records in the annotations of a Lease, compressed where they are long."""

from __future__ import annotations

import base64
import json
import zlib
from typing import Any

from airflow_gpu_provider.untrusted import loads

_LONG = 50_000
_ZLIB = "zlib:"
_MOST_BYTES = 2**23  # bytes of what is compressed in an annotation


def packed(record: Any) -> str:
    """Return it as JSON, compressed where it is long: an object's annotations have 256 KiB together."""
    text = json.dumps(record)
    return text if len(text) < _LONG else _ZLIB + base64.b64encode(zlib.compress(text.encode())).decode()


def unpacked(text: str) -> Any:
    """Read what `packed` wrote; raises ValueError where it is too long."""
    if text.startswith(_ZLIB):
        unpacking = zlib.decompressobj()
        text = unpacking.decompress(base64.b64decode(text.removeprefix(_ZLIB)), _MOST_BYTES).decode()
        if unpacking.unconsumed_tail:
            raise ValueError(f"it has more than {_MOST_BYTES} bytes")
    return loads(text)
