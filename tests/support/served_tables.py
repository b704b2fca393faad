"""Tables of a configuration, and an HTTP client that reads them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import httpx
from starlette.testclient import TestClient

from adapters.http.server import HttpServer
from replicator.wiring.components import build_read_side
from replicator.wiring.configuration import read_config

MOST_PAGES = 200


def serve_tables(folder: Path, sink: dict[str, Any], keys: dict[str, list[str]], **serve: Any) -> TestClient:
    """A client of the tables in a sink called `s`, with their keys. Nothing was replicated into them."""
    entries = [{"match": name, "source": "shop", "keys": key, "to": [{"sink": "s"}]} for name, key in keys.items()]
    config = {
        "pipeline": "shop",
        "sources": {"shop": {"format": "debezium_json", "transport": "archive", "path": "./none.jsonl"}},
        "sinks": {"s": sink},
        "dead_letters": {"path": "./letters"},
        "tables": entries,
        "serve": serve,
    }
    file = folder / "config" / "replicator.yaml"
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(config))
    return open_client(file)


def open_client(file: Path) -> TestClient:
    loaded = read_config(file, None, ())
    said = loaded.settings.serve
    server = HttpServer({"max_rows": said.max_rows, "token": said.token, "address": said.address})
    return TestClient(server.app(None, build_read_side(loaded)))


def make_url(*parts: str, **query: str) -> str:
    """A path of these parts, with query parameters."""
    return "/" + "/".join(quote(part, safe="") for part in parts) + (f"?{urlencode(query)}" if query else "")


def read_pages(client: TestClient, first: str) -> Iterator[list[dict[str, Any]]]:
    """The rows of each page."""
    following: str | None = first
    count = 0
    while following is not None:
        count += 1
        assert count < MOST_PAGES, "the pages do not end"
        answer = client.get(following)
        assert answer.status_code == 200, answer.text
        yield answer.json()["rows"]
        following = answer.json()["next"]


def parse_problem(answer: httpx.Response, status: int) -> dict[str, Any]:
    """The problem document of a refused request."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    said = answer.json()
    assert said["status"] == status and said["detail"] and "next_step" in said
    return dict(said)
