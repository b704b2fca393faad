"""A project that reads an archive into every sink, and checks of its surroundings."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import psycopg
from deltalake import DeltaTable

from adapters.sinks.delta.sink import DeltaRsSink
from support.cli_program import parse_answer, run_program
from support.debezium_events import encode_with_schema, make_column, make_envelope_schema, make_payload

CONFIG = """\
pipeline: shop
sources: {{recorded: {{format: debezium_json, transport: archive, path: ./archive}}}}
sinks:
  lake: {{kind: delta, path: ./lake}}
  raw: {{kind: event_log, path: ./raw}}
  mirror: {{kind: postgres, dsn: "{dsn}", schema: mirror}}
  raw_pg: {{kind: event_log, dsn: "{dsn}"}}
dead_letters: {{path: ./dead_letters}}
tables:
  - {{match: '*', source: recorded, to: [{{sink: raw}}, {{sink: raw_pg}}, {{sink: lake}}, {{sink: mirror}}]}}
http: {{address: "127.0.0.1:0"}}
"""
OWN = {"archive", "config", "dead_letters", "lake", "raw", "state"}
OF_POSTGRES = """
SELECT (SELECT string_agg(nspname, ' ' ORDER BY nspname) FROM pg_namespace WHERE nspname !~ '^pg_'),
       (SELECT string_agg(rolname, ' ' ORDER BY rolname) FROM pg_roles), (SELECT string_agg(v, '') FROM public.canary)
"""


class Shop:
    """A project that reads an archive into every sink."""

    def __init__(self, folder: Path, dsn: str, more: str = "") -> None:
        """`more`: further lines of the config."""
        self.folder, self.dsn, self.offset = folder / "project", dsn, 0
        parts = psycopg.conninfo.conninfo_to_dict(dsn)
        url = f"postgresql://{parts['user']}@{parts['host']}:{parts['port']}/{parts['dbname']}"
        for name in ("archive", "config"):
            (self.folder / name).mkdir(parents=True)
        (self.folder / "config" / "replicator.yaml").write_text(CONFIG.format(dsn=url) + more)
        self.fetch_rows("CREATE TABLE public.canary (v text); INSERT INTO public.canary VALUES ('alive')")
        self.fetch_rows("CREATE SCHEMA mirror; CREATE SCHEMA cdc_raw; CREATE SCHEMA _replicator")
        self.before = self.fetch_rows(OF_POSTGRES)

    def fetch_rows(self, query: str, *parameters: Any) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            cursor = connection.execute(query.encode(), parameters or None)
            return cursor.fetchall() if cursor.description else []

    def record(self, topic: str, source: dict[str, str], columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        """Writes rows of text columns as the connector sends them. The first column is the key."""
        kinds = [make_column(name, "string", optional=n > 0) for n, name in enumerate(columns)]
        with (self.folder / "archive" / "all.jsonl").open("a") as archive:
            for row in rows:
                self.offset += 1
                after = dict(zip(columns, row, strict=True))
                value = encode_with_schema(
                    make_envelope_schema(kinds), make_payload("c", after=after, at=1_000 + self.offset, source=source)
                )
                key = json.dumps({"schema": {"type": "struct", "fields": kinds[:1]}, "payload": {columns[0]: row[0]}})
                record = {"topic": topic, "partition": 0, "offset": self.offset, "timestamp": 1, "headers": None}
                archive.write(json.dumps({**record, "key": key, "value": value.decode()}) + "\n")

    def run(self, *more: str) -> dict[str, dict[str, Any]]:
        """Runs until caught up, and returns the lanes by id."""
        done = run_program(self.folder, "run", "--until-caught-up", "--json", "-q", *more, seconds=800)
        assert done.stdout, done.stderr[-3000:]
        return {lane["id"]: lane for lane in parse_answer(done)["result"]["lanes"]}

    def check_nothing_else_changed(self) -> None:
        assert self.fetch_rows(OF_POSTGRES) == self.before
        assert {path.name for path in self.folder.iterdir()} <= OWN
        assert [path.name for path in self.folder.parent.iterdir()] == ["project"]

    def in_lake(self, name: str, columns: Sequence[str]) -> set[tuple[Any, ...]]:
        sink = DeltaRsSink({"path": str(self.folder / "lake")})
        try:
            return {tuple(row[c] for c in columns) for row in sink.read(name).to_pylist()}
        finally:
            sink.close()

    def in_mirror(self, name: str, columns: Sequence[str]) -> set[tuple[Any, ...]]:
        listed = psycopg.sql.SQL(", ").join(map(psycopg.sql.Identifier, columns))
        query = psycopg.sql.SQL("SELECT {} FROM {}").format(listed, psycopg.sql.Identifier("mirror", name))
        with psycopg.connect(self.dsn) as connection:
            return set(connection.execute(query).fetchall())

    def list_log_records(self) -> list[tuple[str, int, str]]:
        """The topics, offsets and tables of the event log. Lake and PostgreSQL must have the same."""
        log = DeltaTable(str(self.folder / "raw")).to_pyarrow_table(columns=["topic", "offset", "table"]).to_pylist()
        found = sorted((row["topic"], row["offset"], row["table"]) for row in log)
        assert found == sorted(self.fetch_rows('SELECT topic, "offset", "table" FROM cdc_raw.cdc_events'))
        return found


def list_suspended_lanes(lanes: dict[str, dict[str, Any]]) -> dict[str, str]:
    """The error of each suspended lane. Each must have a next step."""
    stopped = {name: lane for name, lane in lanes.items() if lane["status"] != "running"}
    assert all(lane["next_step"] for lane in stopped.values()), stopped
    return {name: lane["error"] for name, lane in stopped.items()}
