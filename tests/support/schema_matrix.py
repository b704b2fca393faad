"""Every kind of schema change with every mode: the records, and the outcomes in the table of the docs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paths import PROJECT

from support.debezium_events import ID, make_column

from .schema_changes import Project, Row, make_archive_record, make_canal_record

PAGE = PROJECT / "docs" / "explanation" / "schema-changes.md"
HEAD = "| change | `evolve` |"
MODES = ("evolve", "try_evolve", "ignore", "fail", "quarantine")

NAME, N, NOTE = make_column("name", "string"), make_column("n", "int32"), make_column("note", "string")
SINKS = ("lake", "mirror")
SMALL_ID = make_column("id", "int32", optional=False)
BIG = 5_000_000_000


def read_outcomes() -> dict[str, dict[str, str]]:
    """The outcomes in the docs, by change and mode."""
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith(HEAD))
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[start:] if line.startswith("|")]
    end = next((i for i, row in enumerate(cells) if row[0] == "outcome"), len(cells))
    assert [cell.strip("`") for cell in cells[0][1:]] == list(MODES)
    return {row[0]: dict(zip(MODES, row[1:], strict=True)) for row in cells[2:end]}


@dataclass(frozen=True)
class Case:
    """A kind of schema change. The schema `old` has two rows. Under `new` the second row is updated and a third
    inserted, both with `value`."""

    name: str
    old: Sequence[Mapping[str, Any]]
    new: Sequence[Mapping[str, Any]]
    value: Mapping[str, Any] = field(default_factory=dict)
    said: str = ""
    old_keys: Sequence[Mapping[str, Any]] = (ID,)
    new_keys: Sequence[Mapping[str, Any]] = (ID,)
    quiet: bool = False
    """The source sends no record under the new schema."""
    between: Sequence[Mapping[str, Any]] = ()
    """A schema in between, under which the second row is updated to its columns of `value`."""
    told: bool = False
    """Canal sends a DROP TABLE between the two schemas."""
    base: int = 0
    """Added to the keys of rows inserted under the new schema."""

    def records(self, table: str) -> list[Row]:
        """The records of this table, from offset 0."""
        first = {"name": "a", "n": 1, "note": "x"}
        had = [{c["field"]: i if c["field"] == "id" else first[c["field"]] for c in self.old} for i in (1, 2)]
        out = [make_archive_record(table, i, self.old, self.old_keys, after=row) for i, row in enumerate(had)]
        if self.quiet:
            return out
        if self.told:
            again = [{"id": i, **self.value} for i in (2, 3)]
            rows = [*had, None, *again]
            return [make_canal_record(table, i, "INSERT" if row else "ERASE", row) for i, row in enumerate(rows)]
        if self.between:
            there = {c["field"]: {"id": 2, **self.value}[c["field"]] for c in self.between}
            out.append(make_archive_record(table, 2, self.between, self.new_keys, op="u", after=there))
        at = len(out)
        out.append(make_archive_record(table, at, self.new, self.new_keys, op="u", after={"id": 2, **self.value}))
        return [*out, make_archive_record(table, at + 1, self.new, self.new_keys, after={"id": 3 + self.base, **self.value})]


CASES: dict[str, Case] = {
    "column added": Case("added", [ID, NAME, N], [ID, NAME, N, NOTE], {"name": "b", "n": 2, "note": "y"}),
    "column dropped": Case("dropped", [ID, NAME, N], [ID, NAME], {"name": "b"}),
    "column dropped, with `dropped_columns: remove`": Case(
        "removed", [ID, NAME, N], [ID, NAME], {"name": "b"}, ", dropped_columns: remove"
    ),
    "column dropped and added again": Case("again", [ID, NAME, N], [ID, NAME, N], {"name": "b", "n": 2}, between=[ID, NAME]),
    "column renamed, not declared": Case("renamed", [ID, NAME, N], [ID, NOTE, N], {"note": "b", "n": 2}),
    "column renamed as `renamed_columns` declares": Case(
        "declared", [ID, NAME, N], [ID, NOTE, N], {"note": "b", "n": 2}, ", renamed_columns: {name: note}"
    ),
    "column widened": Case("widened", [ID, NAME, N], [ID, NAME, make_column("n", "int64")], {"name": "b", "n": BIG}),
    "column narrowed": Case("narrowed", [ID, NAME, N], [ID, NAME, make_column("n", "int16")], {"name": "b", "n": 2}),
    "type changed to text": Case("texts", [ID, NAME, N], [ID, NAME, make_column("n", "string")], {"name": "b", "n": "two"}),
    "type changed otherwise": Case(
        "retyped", [ID, NAME, N], [ID, NAME, make_column("n", "bytes")], {"name": "b", "n": "AAAA"}
    ),
    "key column widened": Case(
        "keys", [SMALL_ID, NAME], [ID, NAME], {"name": "b"}, old_keys=(SMALL_ID,), new_keys=(ID,), base=BIG
    ),
    "key changed": Case("keyed", [ID, NAME], [ID, NAME], {"name": "b"}, new_keys=(ID, NAME)),
    "table dropped": Case("gone", [ID, NAME], [], quiet=True),
    "table dropped, and its stream says so": Case(
        "dropped_told", [ID, NAME, N], [ID, NAME, N], {"name": "b", "n": 2}, told=True
    ),
    "table re-created with a column more": Case(
        "recreated", [ID, NAME, N], [ID, NAME, N, NOTE], {"name": "b", "n": 2, "note": "y"}
    ),
    "table re-created with a column less": Case("recreated_less", [ID, NAME, N], [ID, NAME], {"name": "b"}),
    "table re-created with another key": Case("rekeyed", [ID, NAME], [ID, NAME], {"name": "b"}, new_keys=(NAME,)),
    "table re-created as it was": Case("recreated_same", [ID, NAME], [ID, NAME], {"name": "b"}),
}


@dataclass
class Expected:
    """`rows` by key. `types`: columns with another type than under the old schema, as named by Delta and PostgreSQL.
    `rejected`: the number of rejected rows."""

    rows: list[dict[str, Any]]
    types: dict[str, tuple[str, str]] = field(default_factory=dict)
    rejected: int = 0
    stopped: bool = False
    waits: bool = False


def make_old_rows(case: Case) -> list[dict[str, Any]]:
    first = {"name": "a", "n": 1, "note": "x"}
    return [{c["field"]: i if c["field"] == "id" else first[c["field"]] for c in case.old} for i in (1, 2)]


def _expect_all_rows(case: Case, columns: Sequence[str], rename: Mapping[str, str] | None = None) -> list[dict[str, Any]]:
    """All three rows over these columns. The first row is unchanged."""
    names = rename or {}
    first = {names.get(name, name): value for name, value in make_old_rows(case)[0].items()}
    rows = [first, {"id": 2, **case.value}, {"id": 3 + case.base, **case.value}]
    return [{name: row.get(name) for name in columns} for row in rows]


def _names(columns: Sequence[Mapping[str, Any]]) -> list[str]:
    return [c["field"] for c in columns]


def _union(case: Case) -> list[str]:
    return [*_names(case.old), *(n for n in _names(case.new) if n not in _names(case.old))]


def _texts(case: Case) -> list[dict[str, Any]]:
    return [{**row, "n": str(row["n"])} for row in _expect_all_rows(case, _names(case.old))]


def _expect_rejects(case: Case) -> Expected:
    if case.base:  # a key that fits is applied
        return Expected(_expect_all_rows(case, _names(case.old))[:2], rejected=1)
    return Expected(make_old_rows(case), rejected=2)


LONG = {"n": ("long", "bigint")}
OUTCOMES: dict[str, Callable[[Case], Expected]] = {
    "added": lambda c: Expected(_expect_all_rows(c, _union(c))),
    "left out": lambda c: Expected(_expect_all_rows(c, _names(c.old))),
    "NULL": lambda c: Expected(_expect_all_rows(c, _names(c.old))),
    "NULL in older rows": lambda c: Expected(
        [{**_expect_all_rows(c, _names(c.old))[0], "n": None}, *_expect_all_rows(c, _names(c.old))[1:]]
    ),
    "older rows keep it": lambda c: Expected(_expect_all_rows(c, _names(c.old))),
    "removed": lambda c: Expected(_expect_all_rows(c, _names(c.new))),
    "NULL and added": lambda c: Expected(_expect_all_rows(c, _union(c))),
    "NULL and left out": lambda c: Expected(_expect_all_rows(c, _names(c.old))),
    "renamed": lambda c: Expected(_expect_all_rows(c, _names(c.new), {"name": "note"})),
    "widened": lambda c: Expected(_expect_all_rows(c, _names(c.old)), LONG),
    "key widened": lambda c: Expected(_expect_all_rows(c, _names(c.old)), {"id": ("long", "bigint")}),
    "becomes text": lambda c: Expected(_texts(c), {"n": ("string", "text")}),
    "as it was": lambda c: Expected(_expect_all_rows(c, _names(c.old))),
    "rows rejected": _expect_rejects,
    "stops": lambda c: Expected(make_old_rows(c), stopped=True),
    "waits": lambda c: Expected(make_old_rows(c), stopped=True, waits=True),
    "rows stay": lambda c: Expected(make_old_rows(c) if c.quiet else _expect_all_rows(c, _names(c.old))),
    "goes on": lambda c: Expected(_expect_all_rows(c, _union(c))),
}
"""Outcome in the docs' table -> expected result of a case."""
MADE = {"id": ("long", "bigint"), "name": ("string", "text"), "n": ("integer", "integer"), "note": ("string", "text")}
SMALL_KEY = {"id": ("integer", "integer")}


def list_target_types(case: Case, expected: Expected) -> dict[str, tuple[str, str]]:
    """The types of the target's columns, in Delta Lake and in PostgreSQL."""
    made = MADE | (SMALL_KEY if case.old_keys == (SMALL_ID,) else {}) | expected.types
    return {name: made[name] for name in expected.rows[0]}


def name_table(case: Case, mode: str) -> str:
    """The table's name for a case and a mode."""
    return f"{case.name}_{mode}"


def make_project(folder: Path, dsn: str, chosen: Iterable[tuple[str, str]]) -> Project:
    """A project with a table and records for each of these modes and kinds of change."""
    cases = {name_table(CASES[change], mode): (CASES[change], mode) for mode, change in chosen}
    said = {table: f", schema_changes: {mode}{case.said}" for table, (case, mode) in cases.items()}
    project = Project(folder, said, dsn, flat=lambda table: cases[table][0].told)
    for table, (case, _) in cases.items():
        project.feed(table, case.records(table), "flat" if case.told else "archive")
    return project


def check_lane(project: Project, lane: Mapping[str, Any], change: str, outcome: str) -> None:
    """Rows, types, counts and state of a lane equal an outcome in the docs."""
    case = CASES[change]
    expected = OUTCOMES[outcome](case)
    sink, _, table = lane["id"].partition(".")
    assert (lane["status"] == "suspended") == expected.stopped, lane["error"]
    assert project.rows(sink, table) == expected.rows
    number = SINKS.index(sink)
    assert project.types(sink, table) == {name: kinds[number] for name, kinds in list_target_types(case, expected).items()}
    assert lane["counts"]["rejected"] == expected.rejected
    if expected.stopped:
        assert lane["position"] == {f"cdc.public.{table}": {"0": 2}}, "at the first record of the new schema"
        assert "--accept-schema 2" in lane["next_step"] or not expected.waits or case.name == "retyped"
        assert "config/replicator.yaml:" in lane["next_step"] or not lane["next_step"].startswith("Allow")
