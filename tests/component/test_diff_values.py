"""Values of every type are compared in targets of every kind: equal values are equal, and each changed value is found."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, write_deltalake
from ruamel.yaml import YAML
from support.schema_changes import to_config_dsn

from adapters.sinks.postgres.sink import PostgresTargetSnapshot
from adapters.sources.backfill import PostgresComparison
from adapters.sql.checksums import kind_of_postgres
from replicator.application.operations.diff import DiffOperation
from replicator.application.operations.diff_records import write_records
from replicator.application.operations.diff_runs import DiffProgressFile
from replicator.domain.differences import LaneDiff
from replicator.domain.errors import Fatal
from replicator.ports.reads import TableSplit
from replicator.ports.source import Source
from replicator.settings import load_settings
from replicator.testing.fakes import FakeSource
from replicator.wiring.components import ConfiguredComponents

pytestmark = [pytest.mark.postgres, pytest.mark.timeout(120)]

COLUMNS: dict[str, tuple[str, tuple[str | None, ...], str]] = {
    # name: type in the source, values, another value
    "i2": ("smallint", ("-32768", "0", None), "1"),
    "i8": ("bigint", ("9223372036854775807", "-1", None), "2"),
    "good": ("boolean", ("t", "f", None), "t"),
    "f4": ("real", ("0.1", "1e30", "NaN"), "0.2"),
    "f8": ("double precision", ("0.1", "-0", "1e300"), "0.10000000000000002"),
    "n": ("numeric(12,2)", ("1.50", "-0.01", None), "1.51"),
    "wide": ("numeric", ("1.50", "12345678901234567890.5", None), "1.5000001"),
    "note": ("text", ("", "a|b", None), "A|b"),
    "short": ("character varying(9)", ("blank ", "Ü", "e"), "blank"),
    "padded": ("character(4)", ("ab", "", None), "b"),
    "raw": ("bytea", ("\\x00ff", "\\x", None), "\\x00fe"),
    "day": ("date", ("2026-01-01", "0001-01-01", None), "2026-01-02"),
    "at": (
        "timestamp without time zone",
        ("2026-01-01 10:00:00.5", "1969-12-31 23:59:59.999999", None),
        "2026-01-01 10:00:00.500001",
    ),
    "zoned": (
        "timestamp with time zone",
        ("2026-01-01 10:00:00+02", "2026-01-01 08:00:00.000001+00", None),
        "2026-01-01 10:00:00+00",
    ),
    "clock": ("time without time zone", ("10:00:00", "23:59:59.999999", None), "10:00:00.000001"),
    "uid": ("uuid", ("a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", None, None), "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a12"),
    "doc": ("jsonb", ('{"b": 1, "a": [1.50]}', "null", None), '{"a": [1.5], "b": 2}'),
    "plain": ("json", ('{"b":1}', "[ ]", None), '{"b": 2}'),
    "ids": ("integer[]", ("{1,2}", "{}", None), "{1,3}"),
    "span": ("interval", ("1 day", None, None), "2 days"),
}
WITH_CHECKSUMS = {name: column for name, column in COLUMNS.items() if kind_of_postgres(column[0]) is not None}
ROWS = len(COLUMNS) + 3
WITH_NAN: dict[str, tuple[str, tuple[str | None, ...], str]] = {
    "n": ("numeric(12,2)", ("1.50", "NaN", None), "1"),
    "wide": ("numeric", (f"-{'12345678901234567890' * 5}.25", "1e400", "NaN"), "1"),
}
"""The first of every three rows has no NaN."""
LANES = ("lake.kept", "lake.changed", "lake.strict", "lake.versions", "pg.kept", "pg.versions")


MASK = {"mask": "hmac", "key": "0123456789abcdef"}
CHANGED = {"note": {"rename": "remark"}, "short": MASK, "i2": {"cast": "string"}}


class World:
    """A table with a slot, and targets that were filled from an archive of its rows."""

    to: ClassVar[list[dict[str, Any]]] = [
        {"sink": "lake"},
        {"sink": "lake", "into": "changed", "columns": CHANGED, "where": "id < 5"},
        {"sink": "lake", "into": "strict", "columns": {"i8": {"cast": "int32"}}},
        {"sink": "lake", "into": "versions", "policy": "scd2"},
        {"sink": "pg", "deletes": "soft"},
        {"sink": "pg", "into": "versions", "policy": "scd2"},
    ]

    def __init__(self, dsn: str, folder: Path, columns: dict[str, Any]) -> None:
        self.dsn, self.folder, self.columns = dsn, folder, columns
        declared = ", ".join(f'"{name}" {kind}' for name, (kind, _, _) in columns.items())
        self.execute(
            f'CREATE TABLE kept (id int, "part ""{{rows}}%" text, {declared}, PRIMARY KEY (id, "part ""{{rows}}%"))'
        )
        self.execute("CREATE PUBLICATION shop FOR TABLE kept")
        self.slot = f"values_{dsn.rpartition('_')[2]}"
        self.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", self.slot)
        for row in range(ROWS):
            values = [values[row % 3] for _, values, _ in columns.values()]
            self.execute(f"INSERT INTO kept VALUES (%s, %s, {', '.join(['%s'] * len(values))})", row, f"%{row}", *values)
        self.parts = self.configure({"transport": "kafka", "bootstrap_servers": "127.0.0.1:1", "topics": ["x"]})

    def execute(self, statement: str, *parameters: Any) -> None:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute(statement.encode(), parameters or None)

    def configure(self, source: dict[str, Any]) -> ConfiguredComponents:
        path = self.folder / "config" / f"{source['transport']}.yaml"
        path.parent.mkdir(exist_ok=True)
        database = {"dsn": to_config_dsn(self.dsn), "publication": "shop", "slot": self.slot}
        source = {"format": "debezium_json", **source, **({"database": database} if source["transport"] == "kafka" else {})}
        config = {
            "pipeline": "p",
            "state": str(self.folder / "state"),
            "sources": {"s": source},
            "sinks": {
                "lake": {"kind": "delta", "path": str(self.folder / "lake")},
                "pg": {"kind": "postgres", "dsn": to_config_dsn(self.dsn), "schema": "mirror"},
            },
            "tables": [{"match": "public.kept", "source": "s", "to": self.to}],
            "on_reject": "stop_lane" if source["transport"] == "kafka" else "continue",
        }
        with path.open("w") as out:
            YAML().dump(config, out)
        return ConfiguredComponents(load_settings(path))

    def comparison(self) -> PostgresComparison:
        options = {"dsn": self.dsn, "publication": "shop", "slot": self.slot, "table": "public.kept"}
        return PostgresComparison({**options, "state": str(self.folder / "kept")})

    def fill(self) -> None:
        """Loads the targets with the rows of a snapshot."""
        (self.folder / "records").mkdir()
        with self.comparison().open_snapshot(lambda _: None) as snapshot:
            whole = TableSplit((), snapshot.keys, None, pa.table({}))
            write_records(self.folder / "records" / "0.parquet", snapshot.read(whole, None))
        self.configure({"transport": "archive", "path": str(self.folder / "records")}).catch_up()

    def compare(self, lanes: Sequence[str] = (), **more: Any) -> dict[str, LaneDiff]:
        def confirm(_: str) -> None:
            self.execute("SELECT pg_replication_slot_advance(%s, pg_current_wal_lsn())", self.slot)

        source: Source[pa.Table] = FakeSource([])
        wanted = [lane for lane in self.parts.resolve_lanes("public.kept") if not lanes or lane.id in lanes]
        operation = DiffOperation(self.parts, wanted, self.comparison(), source, confirm, patience=20, show=100, **more)
        return {diff.lane: diff for diff in operation.run()}


@pytest.fixture(params=[COLUMNS, WITH_CHECKSUMS], ids=["every type", "types with checksums"])
def world(request: pytest.FixtureRequest, postgres_dsn: str, tmp_path: Path) -> World:
    filled = World(postgres_dsn, tmp_path, request.param)
    filled.fill()
    return filled


class TwoTargets(World):
    """A world with two targets."""

    to: ClassVar[list[dict[str, Any]]] = [{"sink": "lake"}, {"sink": "pg"}]


@pytest.fixture
def world_with_nan(postgres_dsn: str, tmp_path: Path) -> World:
    filled = TwoTargets(postgres_dsn, tmp_path, WITH_NAN)
    filled.fill()
    return filled


summed = PostgresTargetSnapshot.sum


def list_found(diff: LaneDiff) -> set[tuple[str, int, tuple[str, ...]]]:
    return {(one.kind, one.key["id"], tuple(one.columns) if one.kind == "different" else ()) for one in diff.differences}


def test_only_changed_values_are_found(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    sums = list[Any]()
    monkeypatch.setattr(PostgresTargetSnapshot, "sum", lambda *given: sums.append(given) or summed(*given))
    found = world.compare()
    assert bool(sums) == (world.columns is WITH_CHECKSUMS)
    assert list(found) == list(LANES)
    strict = found["lake.strict"]
    assert {one.key["id"] for one in strict.differences} == set(range(0, ROWS, 3)), strict
    assert all(one.kind == "missing" and "(OUT_OF_RANGE)" in one.reason for one in strict.differences)
    assert all(diff.equal for diff in found.values() if diff is not strict), found
    assert all(diff.rows == (5 if lane == "lake.changed" else ROWS) for lane, diff in found.items())
    unread = "span is not compared: values of the type interval are not read."
    assert all((unread in diff.not_compared) == ("span" in world.columns) for diff in found.values())

    names = [name for name in world.columns if name != "span"]
    for row, name in enumerate(names):
        value = COLUMNS[name][2]
        for table in ("kept", "versions"):
            world.execute(f'UPDATE mirror.{table} SET "{name}" = %s WHERE id = %s', value, row)
    world.execute("DELETE FROM mirror.kept WHERE id = 20")
    world.execute("UPDATE mirror.kept SET _cdc_deleted = true WHERE id = 21")
    world.execute("UPDATE mirror.versions SET id = 100 WHERE id = 22")
    table = DeltaTable(world.folder / "lake" / "kept")
    fields = {field.name: field.type for field in pa.schema(table.schema())}
    for row, name in enumerate(names):
        table.update(updates={f'"{name}"': to_delta(name, COLUMNS[name][2], fields[name])}, predicate=f"id = {row}")
    found = world.compare()
    expected = {("different", row, (name,)) for row, name in enumerate(names)}
    assert list_found(found["pg.kept"]) == {*expected, ("missing", 20, ()), ("missing", 21, ())}
    assert list_found(found["pg.versions"]) == {*expected, ("missing", 22, ()), ("extra", 100, ())}
    assert list_found(found["lake.kept"]) == expected
    assert found["lake.versions"].equal
    assert found["lake.changed"].equal
    world.execute("ANALYZE kept")
    monkeypatch.setattr("replicator.application.operations.diff.READ_ROWS", 4)
    found_below = world.compare(where="id < 19")
    assert [diff.rows for diff in found_below.values()] == [19, 5, 19, 19, 19, 19]
    assert list_found(found_below["lake.kept"]) == list_found(found_below["pg.kept"])
    assert list_found(found_below["pg.kept"]) == {difference for difference in expected if difference[1] < 19}
    world.execute("DROP VIEW mirror.kept_living; ALTER TABLE mirror.kept ALTER n TYPE text; UPDATE mirror.kept SET n = 'x'")
    [as_text] = world.compare(["pg.kept"]).values()
    assert (
        "n is not compared: its type is string in the target, and decimal128(12, 2) in the source." in as_text.not_compared
    )
    assert list_found(as_text) == list_found(found["pg.kept"]) - {("different", names.index("n"), ("n",))}
    world.execute("ALTER TABLE mirror.kept RENAME id TO no")
    with pytest.raises(Fatal, match="has no column id"):
        world.compare(["pg.kept"])


def test_table_with_rows_but_no_target_is_an_error(postgres_dsn: str, tmp_path: Path) -> None:
    world = World(postgres_dsn, tmp_path, {"note": COLUMNS["note"]})
    with pytest.raises(Fatal, match="has no target yet, but its table has rows"):
        world.compare()
    world.execute("TRUNCATE kept")
    found = world.compare()
    assert len(found) == len(LANES) and all(diff.equal and diff.rows == 0 for diff in found.values())


def test_rejected_rows_are_reported_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """This holds if the target has an older row, and if the comparison is resumed."""
    table = DeltaTable(world.folder / "lake" / "strict")
    older = table.to_pyarrow_table().filter(pc.field("id") == 1)
    for name, value in {"id": 0, "part": "%0"}.items():
        at = next(at for at, stored in enumerate(older.column_names) if stored.startswith(name))
        older = older.set_column(at, older.field(at), pa.array([value], older.field(at).type))
    write_deltalake(table, older, mode="append")
    rejected = {("different" if row == 0 else "missing", row) for row in range(0, ROWS, 3)}
    world.execute("ANALYZE kept")
    monkeypatch.setattr("replicator.application.operations.diff.READ_ROWS", 8)
    write, killed = DiffProgressFile.write, list[int]()

    def write_and_end(*given: Any) -> None:
        write(*given)
        if not killed:
            killed.append(1)
            raise KeyboardInterrupt

    monkeypatch.setattr(DiffProgressFile, "write", write_and_end)
    with pytest.raises(KeyboardInterrupt):
        world.compare(["lake.strict"])
    [diff] = world.compare(["lake.strict"]).values()
    assert {(one.kind, one.key["id"]) for one in diff.differences} == rejected
    assert (diff.missing, diff.extra, diff.different) == (len(rejected) - 1, 0, 1)


def test_rows_with_nan_are_missing_and_long_numbers_are_equal(world_with_nan: World) -> None:
    """Temporary files of a killed comparison are removed, and none remains."""
    world, temporary = world_with_nan, world_with_nan.parts.folder / "diffs" / "temporary"
    (temporary / "killed").mkdir(parents=True)
    (temporary / "killed.lock").touch()
    rejected = {row for row in range(ROWS) if row % 3}
    for diff in world.compare().values():
        assert (diff.rows, diff.missing, diff.extra, diff.different) == (ROWS, len(rejected), 0, 0), diff
        assert {one.key["id"] for one in diff.differences} == rejected
        for one in diff.differences:
            name = "n" if one.key["id"] % 3 == 1 else "wide"
            sentence = (
                f"The lane rejects this row (OUT_OF_RANGE): column {name!r} holds NaN or an infinity, and no finite number"
            )
            assert (one.kind, one.reason) == ("missing", sentence)
    assert not list(temporary.iterdir())


def to_delta(name: str, value: str, kind: pa.DataType) -> str:
    """The value as an expression of delta-rs."""
    if name == "ids":
        return "make_array(arrow_cast(1, 'Int32'), arrow_cast(3, 'Int32'))"
    if name == "raw":
        return "arrow_cast(decode('00fe', 'hex'), 'Binary')"
    if pa.types.is_timestamp(kind):
        zone = 'Some("UTC")' if kind.tz else "None"
        return f"arrow_cast('{value}', 'Timestamp(Microsecond, {zone})')"
    return f"'{value}'" if pa.types.is_string(kind) else f"CAST('{value}' AS {sql_type(kind)})"


def sql_type(kind: pa.DataType) -> str:
    if pa.types.is_decimal(kind):
        return f"DECIMAL({kind.precision}, {kind.scale})"
    return SQL_TYPES[str(kind)]


SQL_TYPES = {
    "int16": "SMALLINT",
    "int64": "BIGINT",
    "bool": "BOOLEAN",
    "float": "REAL",
    "double": "DOUBLE",
    "date32[day]": "DATE",
}
