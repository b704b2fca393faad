"""What the OpenAPI document promises, asked for by schemathesis: whatever comes, the answer is one that it names."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from adapters.http.server import HttpServer
from replicator.ports.runtime import Endpoints
from replicator.wiring.components import build_read_side
from replicator.wiring.configuration import read_config

schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is of the dev group")
pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

EXAMPLES = int(os.environ.get("REPLICATOR_FUZZ", "60"))
PATHS = (
    "/tables",
    "/tables/{table}",
    "/tables/{table}/rows",
    "/tables/{table}/rows/{key}",
    "/tables/{table}/history/{key}",
    "/tables/{table}/timeline/{key}",
)


@pytest.fixture(scope="module")
def document(caught_up: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("served") / "project"
    shutil.copytree(caught_up, folder)
    server = HttpServer({"address": "127.0.0.1:0"})
    url = server.start(Endpoints(None, build_read_side(read_config(folder / "config" / "replicator.yaml", None, ()))))
    yield schemathesis.openapi.from_url(f"{url}/openapi.json")
    server.close()


@pytest.mark.parametrize("mode", ["positive", "negative"])
@pytest.mark.parametrize("path", PATHS)
def test_every_answer_is_one_that_is_promised(document: Any, path: str, mode: str) -> None:
    """No 5xx, no status, form or body that the document does not name; what breaks the document is refused."""
    from schemathesis import GenerationMode
    from schemathesis.specs.openapi.checks import positive_data_acceptance

    operation = document[path]["GET"]
    if mode == "negative" and "{" not in path:
        pytest.skip("it takes no parameters")
    # Texts that are promised to be taken may still be no key, no value of their column, or of no time that is told.
    left_out = [positive_data_acceptance]

    @settings(
        max_examples=EXAMPLES, database=None, phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(case=operation.as_strategy(generation_mode=GenerationMode(mode)))
    def ask(case: Any) -> None:
        case.call_and_validate(excluded_checks=left_out, timeout=60)

    ask()
