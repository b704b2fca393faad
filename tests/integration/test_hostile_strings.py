"""Texts that try to be more than texts, wherever the source may say one: nothing but rows comes of it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hostile_strings import hostile_strings
from recorded_shop import Shop, refused

pytestmark = [pytest.mark.postgres, pytest.mark.slow, pytest.mark.timeout(600)]

TEXTS = hostile_strings()
SOME = TEXTS if os.environ.get("REPLICATOR_LONG") else TEXTS[::5]
"""Each makes lanes of its own."""


@pytest.fixture
def shop(tmp_path: Path, postgres_dsn: str) -> Shop:
    return Shop(tmp_path, postgres_dsn)


def test_as_keys_and_values(shop: Shop) -> None:
    rows = [(text, text) for text in TEXTS]
    shop.record("cdc.public.t", {"table": "t"}, ("id", "v"), rows)
    lanes = shop.run()
    assert {lane["status"] for lane in lanes.values()} == {"running"}
    assert shop.in_lake("t", ("id", "v")) == shop.in_mirror("t", ("id", "v")) == set(rows)
    shop.nothing_else_happened()


def too_long(text: str) -> bool:
    return len(text.encode()) > 63


def is_ours(column: str) -> bool:
    return column == "_op" or column.startswith("_cdc_")


def test_as_columns(shop: Shop) -> None:
    """Ten to a table. Names that PostgreSQL would cut, and those that are the program's own, are refused by name."""
    tables = {f"t{at}": ["the key", *TEXTS[at : at + 10]] for at in range(0, len(TEXTS), 10)}
    values = tuple(str(n) for n in range(11))
    for name, columns in tables.items():
        shop.record(f"cdc.public.{name}", {"table": name}, columns, [values])
    errors = refused(shop.run())
    for name, columns in tables.items():
        ours, cut = any(c.startswith("_cdc_") for c in columns), any(map(too_long, columns))
        for lane, wrong, read in ((f"lake.{name}", ours, shop.in_lake), (f"mirror.{name}", ours or cut, shop.in_mirror)):
            assert (lane in errors) == wrong, (lane, errors.get(lane))
            assert wrong or read(name, columns) == {values}
    assert len(shop.logged()) == len(tables)
    shop.nothing_else_happened()


def target_of(name: str) -> str:
    """A target is called as what follows the last dot of its table's name."""
    return name.rpartition(".")[2]


def test_as_tables(shop: Shop) -> None:
    """Of several tables with one target the first has it. No name, or one too long for PostgreSQL, is refused."""
    for at, name in enumerate(SOME):
        shop.record(f"cdc.public.t{at}", {"table": name}, ("id", "v"), [("1", name)])
    errors = refused(shop.run())
    first: dict[str, str] = {}
    for name in SOME:
        into = target_of(name)
        if first.setdefault(into, name) != name:
            assert {f"{sink}.{into} (public.{name})" for sink in ("lake", "mirror")} <= errors.keys()
            continue
        for sink, read, wrong in (("lake", shop.in_lake, False), ("mirror", shop.in_mirror, too_long(into))):
            assert (f"{sink}.{into}" in errors) == (wrong or not into), (sink, into)
            assert wrong or not into or read(into, ("id", "v")) == {("1", name)}
    assert len(shop.logged()) == len(SOME)
    shop.nothing_else_happened()


def test_as_schemas_and_topics(shop: Shop) -> None:
    for at, text in enumerate(SOME):
        shop.record(text, {"schema": text, "table": f"t{at}"}, ("id", "v"), [("1", text)])
    assert not refused(shop.run())
    for at, text in enumerate(SOME):
        assert shop.in_lake(f"t{at}", ("id", "v")) == shop.in_mirror(f"t{at}", ("id", "v")) == {("1", text)}
    assert [(topic, table) for topic, _, table in shop.logged()] == sorted((t, f"{t}.t{n}") for n, t in enumerate(SOME))
    shop.nothing_else_happened()


def test_a_topic_that_is_too_long_for_a_folder(shop: Shop) -> None:
    """Kafka has no such topics. What goes wrong is told, and the other sinks go on."""
    shop.record("é" * 45, {"table": "t"}, ("id", "v"), [("1", "v")])
    errors = refused(shop.run())
    assert list(errors) == ["raw.recorded"] and "longer name" in errors["raw.recorded"]
    assert shop.in_lake("t", ("id", "v")) == shop.in_mirror("t", ("id", "v")) == {("1", "v")}
    shop.nothing_else_happened()
