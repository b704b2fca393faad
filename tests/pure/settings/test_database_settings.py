"""`database` of a source, for PostgreSQL and MariaDB."""

from __future__ import annotations

import pytest

from replicator.settings import to_plain_options

BEFORE = "      client.rack: a"


def set_database(folder, database: str) -> int:
    return folder.change(BEFORE, f"{BEFORE}\n    database: {database}")


@pytest.mark.parametrize("dsn", ["mariadb://u:hunter2@h", "mariadb://u:hunter2@h:3306/shop?ssl_ca=/ca.pem"])
def test_mariadb_needs_a_url_only(folder, dsn):
    set_database(folder, f"{{dsn: '{dsn}', bigint_unsigned: precise}}")
    loaded = folder.load()
    source = loaded.settings.sources["shop"]
    assert source.database.kind == "mariadb"
    assert to_plain_options(source)["database"] == {"dsn": dsn, "bigint_unsigned": "precise"}
    assert "hunter2" not in f"{loaded.to_redacted()} {loaded.settings!r}"


@pytest.mark.parametrize(
    ("database", "code", "words"),
    [
        ("{dsn: 'mariadb://h', slot: s}", "database", "has no 'publication' and no 'slot'"),
        ("{dsn: 'mariadb://h', publication: p, slot: s}", "database", "remove them"),
        ("{dsn: 'postgresql://h/d', publication: p, slot: A}", "name", "slot must be text that matches ^[a-z0-9_]{1,63}$"),
        ("{dsn: 'postgresql://h/d', publication: p}", "database", "needs the connector's 'publication' and 'slot'"),
        ("{dsn: 'postgresql://h/d', publication: p, slot: s, bigint_unsigned: long}", "database", "'bigint_unsigned'"),
        ("{dsn: 'mariadb://h', bigint_unsigned: short}", "unknown_value", "long"),
        ("{dsn: 'mysql://h/d'}", "dsn", "incremental snapshots"),
        ("{dsn: 'mariadb://'}", "dsn", "mariadb://USER"),
        ("{dsn: 'oracle://h/d'}", "dsn", "postgresql://USER"),
    ],
)
def test_invalid_settings_are_refused_at_their_line(folder, database, code, words):
    line = set_database(folder, database)
    [found] = folder.findings()
    assert (found.code, words in f"{found.message} {found.suggestion}") == (code, True), str(found)
    assert line - 1 <= found.line <= line + 1
