"""A project whose recorded topics change their schemas. It runs in this process, with a lake and a database as targets."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import psycopg
from deltalake import DeltaTable
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import dict_row

from support.cli_program import run_in_process
from support.debezium_events import encode_with_schema, make_envelope_schema, make_event_key, make_payload

CONFIG = """\
pipeline: changing
sources:
  recorded: {{format: debezium_json, transport: archive, path: ./archive}}
{flat}
sinks:
  lake: {{kind: delta, path: ./lake}}
{mirror}
dead_letters: {{path: ./lake/_replicator/dead_letters}}
tables:
{tables}
http: {{address: "127.0.0.1:0"}}
"""
FLAT = "  flat: {format: canal_json, transport: archive, path: ./flat}"
FLAT_TYPES = {"id": "bigint(20)", "name": "varchar(40)", "n": "int(11)", "note": "varchar(40)"}
Row = Mapping[str, Any]


def to_config_dsn(dsn: str) -> str:
    """A DSN in the form of the config."""
    parts = conninfo_to_dict(dsn)
    return f"postgresql://{parts['user']}@{parts['host']}:{parts['port']}/{parts['dbname']}"


def make_archive_record(
    table: str, offset: int, columns: Sequence[Mapping[str, Any]], keys: Sequence[Mapping[str, Any]], **more: Any
) -> Row:
    """A change event of `public.<table>` with its schema, in the archive format. `at` is its place in the source's log."""
    payload = make_payload(**{"at": 1_000 + offset, **more}, source={"table": table})
    row = payload["after"] or payload["before"] or {}
    named = {c["field"]: row[c["field"]] for c in keys}
    value = encode_with_schema(make_envelope_schema(columns, table), payload)
    return {
        "topic": f"cdc.public.{table}", "partition": 0, "offset": offset, "timestamp": offset, "headers": None,
        "key": make_event_key(keys, **named).decode(), "value": value.decode(),
    }  # fmt: skip


def make_canal_record(table: str, offset: int, kind: str, row: Mapping[str, Any] | None = None) -> Row:
    """A Canal message of `public.<table>`, in the archive format. Without a row it is a statement."""
    value = {
        "type": kind, "database": "public", "table": table, "isDdl": row is None, "es": 1_700_000_000_000 + offset,
        "data": None if row is None else [{n: None if v is None else str(v) for n, v in row.items()}], "old": None,
        "mysqlType": None if row is None else {name: FLAT_TYPES[name] for name in row},
        "pkNames": None if row is None else ["id"], "sql": "" if row is not None else f"DROP TABLE {table}",
    }  # fmt: skip
    place = {"topic": f"cdc.public.{table}", "partition": 0, "offset": offset, "timestamp": offset, "headers": None}
    return {**place, "key": None, "value": json.dumps(value)}


class Project:
    """`tables`: table of the config -> further keys of its entries. `flat` is true for tables that Canal sends, in the
    folder `flat`."""

    def __init__(
        self,
        folder: Path,
        tables: Mapping[str, str],
        dsn: str | None = None,
        policy: str = "",
        flat: Callable[[str], bool] = lambda _: False,
    ) -> None:
        self.folder, self.dsn = folder, dsn
        (folder / "config").mkdir(parents=True)
        sources = {table: "flat" if flat(table) else "recorded" for table in tables}
        for name in ("archive", *(["flat"] if "flat" in sources.values() else [])):
            (folder / name).mkdir()
        mirror = f'  mirror: {{kind: postgres, dsn: "{to_config_dsn(dsn)}"}}' if dsn else ""
        lines = []
        for table, said in tables.items():
            sinks = ("lake", "mirror") if dsn else ("lake",)
            to = ", ".join(f"{{sink: {sink}{policy}{said}}}" for sink in sinks)
            lines.append(f"  - {{match: public.{table}, source: {sources[table]}, to: [{to}]}}")
        source = FLAT if "flat" in sources.values() else ""
        text = CONFIG.format(flat=source, mirror=mirror, tables="\n".join(lines))
        (folder / "config" / "replicator.yaml").write_text(text)

    def feed(self, name: str, records: Iterable[Row], archive: str = "archive") -> None:
        """Adds a file to the folder `archive` or `flat`."""
        (self.folder / archive / f"{name}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))

    def run_command(self, *arguments: str) -> dict[str, Any]:
        """The answer of a command, with its exit code."""
        done = run_in_process(self.folder, *arguments, "--json", "-q")
        return {**json.loads(done.stdout), "exit": done.exit_code}

    def configure(self, *changes: tuple[str, str]) -> None:
        """Replaces texts of the config, each of which must occur."""
        config = self.folder / "config" / "replicator.yaml"
        text = config.read_text()
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        config.write_text(text)

    def run(self, *settings: str) -> dict[str, dict[str, Any]]:
        """Runs until caught up, and returns the lanes by id."""
        answer = self.run_command("run", "--until-caught-up", *settings)
        assert answer["result"] is not None, answer
        return {lane["id"]: lane for lane in answer["result"]["lanes"]}

    def rows(self, sink: str, table: str) -> list[dict[str, Any]]:
        """The source's columns of a target, sorted by the first column."""
        found = self._lake(table) if sink == "lake" else self._mirror(table)
        plain = [{n: v for n, v in row.items() if not n.startswith("_")} for row in found]
        return sorted(plain, key=lambda row: str(next(iter(row.values()))))

    def types(self, sink: str, table: str) -> dict[str, str]:
        """The types of the source's columns, as the target names them."""
        if sink == "lake":
            fields = DeltaTable(str(self.folder / "lake" / table)).schema().fields
            found = {f.name: str(f.type.type) for f in fields if hasattr(f.type, "type")}
        else:
            asked = "SELECT column_name, data_type FROM information_schema.columns WHERE table_name = %s"
            with psycopg.connect(self.dsn or "") as connection:
                found = dict(connection.execute(asked, (table,)).fetchall())
        return {name: kind for name, kind in found.items() if not name.startswith("_")}

    def _lake(self, table: str) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = DeltaTable(str(self.folder / "lake" / table)).to_pyarrow_table().to_pylist()
        return rows

    def _mirror(self, table: str) -> list[dict[str, Any]]:
        with psycopg.connect(self.dsn or "", row_factory=dict_row) as connection:
            return connection.execute(f'SELECT * FROM public."{table}"').fetchall()  # type: ignore[arg-type]
