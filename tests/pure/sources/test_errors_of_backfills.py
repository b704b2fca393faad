"""Errors of a PostgreSQL source: a value that it cannot read is no fault of a target."""

from __future__ import annotations

import psycopg
import pytest

from adapters.sources.backfill.postgres import PostgresDatabase
from replicator.domain.errors import Fatal


def test_value_that_the_source_cannot_read_is_reported() -> None:
    database = PostgresDatabase({"dsn": "postgresql://nobody@127.0.0.1:1/nothing", "publication": "p", "slot": "s"})
    with pytest.raises(Fatal) as refused, database._translate_errors("public.orders"):
        raise psycopg.errors.CharacterNotInRepertoire("a value")
    assert refused.value.sentence == (
        "The source cannot read a value of public.orders: character not in repertoire (SQLSTATE 22021)."
    )
    assert "publication" in refused.value.next_step
