"""One database for the tests of a file that write nothing but the schemas of a sink."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest


@pytest.fixture(scope="module")
def database_of_file(postgres_server: Any) -> str:
    return str(postgres_server.database())


@pytest.fixture
def emptied_dsn(database_of_file: str) -> Iterator[str]:
    """It is empty when the test begins. To empty it takes a third of the time of making another one."""
    yield database_of_file
    with psycopg.connect(database_of_file, autocommit=True) as connection:
        connection.execute("DROP SCHEMA IF EXISTS mirror, _replicator CASCADE")
