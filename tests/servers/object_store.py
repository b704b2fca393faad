"""An in-memory S3 server (moto) in a child process."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from urllib.error import URLError
from urllib.request import Request, urlopen

from adapters.stack.layout import find_free_port

BUCKET = "lake-bucket"
SECONDS = 30
NUMBERS = count(1)
SERVER = """
from functools import cache
from moto import server
from moto.moto_server.werkzeug_app import DomainDispatcherApplication as Dispatcher

# Uncached, each request searches the folders and addresses of all services.
Dispatcher.get_backend_for_host = cache(Dispatcher.get_backend_for_host)
server.MotoRequestHandler.log_request = lambda *_: None
server.main()
"""
"""moto's program with a cache, which halves the time of a request."""


@dataclass
class ObjectStore:
    """A server with one bucket. It accepts any key, unless it checks keys."""

    port: int
    child: subprocess.Popen[bytes]

    @property
    def storage(self) -> dict[str, object]:
        """The option `storage` of a sink."""
        return {
            "access_key_id": "AKIDOFTESTS",
            "secret_access_key": "not-to-be-seen",
            "region": "eu-west-1",
            "endpoint": f"http://127.0.0.1:{self.port}",
            "allow_http": True,
        }

    def lake(self) -> dict[str, object]:
        """Options of a sink on a new lake."""
        return {"path": f"s3://{BUCKET}/lakes/{next(NUMBERS)}", "storage": self.storage}

    def keys(self, path: object) -> list[str]:
        """The keys under `s3://BUCKET/KEY`, without this prefix."""
        import obstore
        from obstore.store import S3Store

        from adapters.object_store.options import Storage, split_url

        bucket, key = split_url(str(path))
        store = S3Store(bucket, **Storage.model_validate(self.storage).to_obstore())
        return sorted(f["path"].removeprefix(f"{key}/") for page in obstore.list(store, f"{key}/") for f in page)

    def make(self, bucket: str = BUCKET) -> None:
        """Creates a bucket."""
        with urlopen(Request(f"http://127.0.0.1:{self.port}/{bucket}", method="PUT")) as answer:
            assert answer.status == 200

    def stop(self) -> None:
        """The server goes away."""
        self.child.kill()
        self.child.wait()


@contextmanager
def object_store(*, asks_after: int | None = None) -> Iterator[ObjectStore]:
    """Starts a server. `asks_after`: the number of requests accepted without a check. Later requests are refused,
    because the server has no keys."""
    port = find_free_port()
    asking = {} if asks_after is None else {"INITIAL_NO_AUTH_ACTION_COUNT": str(asks_after)}
    command = [sys.executable, "-c", SERVER, "-H", "127.0.0.1", "-p", str(port)]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    child = subprocess.Popen(command, env={**os.environ, **asking}, **quiet)  # type: ignore[call-overload]
    store = ObjectStore(port, child)
    try:
        _await(store)
        store.make()
        yield store
    finally:
        store.stop()


def _await(store: ObjectStore) -> None:
    until = time.monotonic() + SECONDS
    while True:
        try:
            urlopen(f"http://127.0.0.1:{store.port}/moto-api/data.json").close()
            return
        except (URLError, ConnectionError):
            assert store.child.poll() is None and time.monotonic() < until, "moto did not start"
            time.sleep(0.1)
