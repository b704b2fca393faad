"""A local schema registry (Apicurio, with Confluent's API), and proxies in front of it that can refuse connections."""

from __future__ import annotations

import os
import socket
import ssl
import subprocess
import tarfile
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from adapters.jvm.jars import fetch_jars
from adapters.jvm.java import bundled_java
from adapters.stack.layout import find_free_port

API = "/apis/ccompat/v7"
SECONDS = 180
OPTIONS = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


def unpack_server(archive: Path) -> Path:
    """The server's folder next to its archive. It appears only when it is complete."""
    folder = archive.with_name(archive.name.removesuffix(".tar.gz"))
    if not folder.is_dir():
        with tempfile.TemporaryDirectory(dir=archive.parent) as scratch:
            with tarfile.open(archive) as packed:
                packed.extractall(f"{scratch}/whole", filter="data")
            with suppress(OSError):  # Another test run unpacked it first.
                Path(scratch, "whole").rename(folder)
    return folder


@contextmanager
def schema_registry(log: Path) -> Iterator[str]:
    """The address of an empty registry, in memory. Confluent's API is under `API`."""
    (archive,) = fetch_jars("registry")
    port = find_free_port()
    here = {"HTTP": port, "MANAGEMENT": find_free_port()}
    environment = {**os.environ, **{f"QUARKUS_{of}_PORT": str(number) for of, number in here.items()}}
    environment |= {f"QUARKUS_{of}_HOST": "127.0.0.1" for of in here}
    command = [str(bundled_java()), *OPTIONS, "-jar", str(unpack_server(archive) / "quarkus-run.jar")]
    with log.open("wb") as out:
        child = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT)
    try:
        address = f"http://127.0.0.1:{port}"
        deadline = time.monotonic() + SECONDS
        while not _answers(address):
            assert child.poll() is None, log.read_text(errors="replace")[-2000:]
            assert time.monotonic() < deadline, "the registry does not answer"
            time.sleep(0.2)
        yield address
    finally:
        child.terminate()
        child.wait(30)


def _answers(address: str) -> bool:
    with suppress(URLError, OSError), urlopen(f"{address}{API}/subjects", timeout=5) as answer:
        return bool(answer.status == 200)
    return False


class ConnectionProxy:
    """Forwards connections to a server while it is open, otherwise its port refuses them. `passed` counts forwarded
    connections. With `tls`, clients must use TLS."""

    def __init__(self, address: str, tls: ssl.SSLContext | None = None) -> None:
        self._to = int(address.rpartition(":")[2])
        self._tls = tls
        self.port = find_free_port()
        self.passed = 0
        self._listener: socket.socket | None = None
        self._open: list[socket.socket] = []

    @property
    def url(self) -> str:
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self.port}{API}"

    def open(self) -> None:
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", self.port))
        listener.listen()
        self._listener = listener
        threading.Thread(target=self._take, args=(listener,), daemon=True).start()

    def refuse_connections(self) -> None:
        """Refuses new connections, and closes the existing ones."""
        if self._listener is not None:
            with suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            self._listener = None
        for one in self._open:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        self._open.clear()

    def _take(self, listener: socket.socket) -> None:
        while True:
            try:
                inside, _ = listener.accept()
            except OSError:
                return
            with suppress(OSError):
                self._pass_on(inside)

    def _pass_on(self, inside: socket.socket) -> None:
        if self._tls is not None:
            inside = self._tls.wrap_socket(inside, server_side=True)
        outside = socket.create_connection(("127.0.0.1", self._to))
        self.passed += 1
        self._open += [inside, outside]
        for source, target in ((inside, outside), (outside, inside)):
            threading.Thread(target=_copy, args=(source, target), daemon=True).start()


def _copy(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65_536):
            target.sendall(data)
    with suppress(OSError):
        target.shutdown(socket.SHUT_WR)


@contextmanager
def open_proxy(address: str, tls: ssl.SSLContext | None = None) -> Iterator[ConnectionProxy]:
    """An open proxy in front of the registry at `address`."""
    made = ConnectionProxy(address, tls)
    made.open()
    try:
        yield made
    finally:
        made.refuse_connections()


@contextmanager
def serve_answer(status: int, body: bytes = b"{}") -> Iterator[tuple[str, list[str]]]:
    """A server with one answer to all requests, and the credentials of the requests."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.headers.get("Authorization", ""))
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        server.server_close()
