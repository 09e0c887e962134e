"""An image registry on loopback, with images made here: containerd's mirror for all registries of the world.

Images are busybox's one static binary under the names of the programs in it, and the device plugin. A reference that
is not among them is not found, whoever's registry it names.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import tarfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from urllib.parse import urlsplit

BUSYBOX = Path("/bin/busybox")

_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
_CONFIG = "application/vnd.docker.container.image.v1+json"
_LAYER = "application/vnd.docker.image.rootfs.diff.tar.gzip"


@dataclass(frozen=True, kw_only=True)
class TestImage:
    """An image of one layer.

    Attributes:
        pattern: Its references, an fnmatch pattern on `repository:tag` without the registry.
        files: The executables in it, by their path in the image.
        links: Symbolic links, by path: where each leads.
        entrypoint: The command of a container that names none.
    """

    __test__ = False

    pattern: str
    files: Mapping[str, Path]
    links: Mapping[str, str]
    entrypoint: Sequence[str] = ()


class Registry:
    """A context manager; `url` is known before it is entered."""

    def __init__(self, images: Sequence[TestImage]) -> None:
        self._blobs: dict[str, bytes] = {}
        self._manifests = [(image.pattern, self._add(image)) for image in images]
        registry = self

        class Handler(_Handler):
            def find(self, path: str) -> tuple[str, bytes] | None:
                return registry._find(path)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, name="registry", daemon=True)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Registry:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _add(self, image: TestImage) -> bytes:
        layer = _tar(image)
        config = {
            "architecture": "arm64" if os.uname().machine == "aarch64" else "amd64",
            "os": "linux",
            # The label makes images of the same files different ones, which are not taken for each other.
            "config": {
                "Env": ["PATH=/bin"],
                "Entrypoint": list(image.entrypoint),
                "Labels": {"pattern": image.pattern},
            },
            "rootfs": {"type": "layers", "diff_ids": [_digest(layer)]},
        }
        manifest = {
            "schemaVersion": 2,
            "mediaType": _MANIFEST,
            "config": self._keep(_CONFIG, json.dumps(config).encode()),
            "layers": [self._keep(_LAYER, gzip.compress(layer, 1, mtime=0))],
        }
        content = json.dumps(manifest).encode()
        self._keep(_MANIFEST, content)
        return content

    def _keep(self, media_type: str, content: bytes) -> dict[str, str | int]:
        digest = _digest(content)
        self._blobs[digest] = content
        return {"mediaType": media_type, "digest": digest, "size": len(content)}

    def _find(self, path: str) -> tuple[str, bytes] | None:
        """Answer /v2/<repository>/manifests/<tag or digest> and /v2/<repository>/blobs/<digest>."""
        if path == "/v2/":
            return "application/json", b"{}"
        front, _, reference = path.rpartition("/")
        repository, _, kind = front.removeprefix("/v2/").rpartition("/")
        if reference in self._blobs:
            return _MANIFEST if kind == "manifests" else "application/octet-stream", self._blobs[reference]
        name = f"{repository.removeprefix('library/')}:{reference}"
        return next(((_MANIFEST, found) for pattern, found in self._manifests if fnmatchcase(name, pattern)), None)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def find(self, path: str) -> tuple[str, bytes] | None:
        raise NotImplementedError

    def do_GET(self) -> None:
        found = self.find(urlsplit(self.path).path)
        status = HTTPStatus.OK if found else HTTPStatus.NOT_FOUND
        media_type, content = found or ("application/json", b'{"errors": [{"code": "MANIFEST_UNKNOWN"}]}')
        self.send_response(status)
        self.send_header("Content-Type", media_type)
        self.send_header("Content-Length", str(len(content)))
        if found:
            self.send_header("Docker-Content-Digest", _digest(content))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    do_HEAD = do_GET

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: containerd says what it misses."""


def _tar(image: TestImage) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for folder in ("bin", "tmp", "etc", "usr/bin"):
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if folder == "tmp" else 0o755
            tar.addfile(entry)
        for name, source in image.files.items():
            entry = tarfile.TarInfo(name.lstrip("/"))
            entry.mode, entry.size = 0o755, source.stat().st_size
            with source.open("rb") as content:
                tar.addfile(entry, content)
        for name, target in image.links.items():
            entry = tarfile.TarInfo(name.lstrip("/"))
            entry.type, entry.linkname = tarfile.SYMTYPE, target
            tar.addfile(entry)
    return file.getvalue()


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"
