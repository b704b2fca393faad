"""Options of the PostgreSQL adapters: invalid values are reported without secrets."""

from __future__ import annotations

import traceback

import pytest
from pydantic import SecretStr

from adapters.postgres.names import read_dsn
from replicator.domain.errors import ConfigProblem

UNREADABLE = [
    "postgresq://u:geheim@h/db",
    "host=h password=geheim bad",
    "postgresql://u:ge heim@h/db",
    "host='h password=geheim",
]


@pytest.mark.parametrize("dsn", UNREADABLE)
def test_invalid_dsn_is_refused_without_showing_it(dsn: str) -> None:
    with pytest.raises(ConfigProblem, match=r"`dsn` is neither a libpq connection string nor") as raised:
        read_dsn(SecretStr(dsn))
    shown = "".join(traceback.format_exception(raised.value))
    assert "heim" not in shown.replace(repr(dsn), "")


@pytest.mark.parametrize("scheme", ["postgresql", "postgresql+psycopg", "postgres+psycopg2"])
def test_every_form_of_the_scheme_is_accepted(scheme: str) -> None:
    assert read_dsn(SecretStr(f"{scheme}://u:p@h/db")) == f"{scheme.partition('+')[0]}://u:p@h/db"
