"""SQL dialects: the differences between the engines' SQL. A dialect changes spelling, never the meaning of a
policy."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Dialect:
    """One SQL dialect.

    - `contains`: template over `list` and `item`; true when a list of text contains the item.
    - `row`: the function that builds a comparable tuple from its arguments, ordered from the left.
    - `overriding`: text before the rows of an INSERT, so that an identity column accepts the given value.
    - `escape`: the character before a quote, and before itself, in a text constant. Empty: the quote is
      doubled.
    - `time_template`: template over `micros`; the text of that time in UTC.
    - `instant_template`: template over `micros`; that time as a timestamp with a zone. `no_instant`: no such time.
    - `has_one_relation`: the statement reads one relation without an alias, so columns have no prefix.
    """

    name: str
    quote: str
    contains: str
    row: str
    overriding: str = ""
    escape: str = ""
    time_template: str = ""
    instant_template: str = ""
    no_instant: str = "NULL"
    has_one_relation: bool = False

    def quote_name(self, name: str) -> str:
        """`name` as an identifier, with any characters."""
        return self.quote + name.replace(self.quote, self.quote * 2) + self.quote

    def text(self, value: str) -> str:
        """`value` as a text constant."""
        if not self.escape:
            return text_literal(value)
        return "'" + value.replace(self.escape, self.escape * 2).replace("'", f"{self.escape}'") + "'"

    def instant(self, micros: int | None) -> str:
        """Microseconds since 1970, or no time, as an expression."""
        return self.no_instant if micros is None else self.instant_template.format(micros=micros)

    def column(self, relation: str, name: str) -> str:
        """A column of a relation that has a name from this code base."""
        return self.quote_name(name) if self.has_one_relation else f"{relation}.{self.quote_name(name)}"


DUCKDB_MOMENT, SPARK_MOMENT = "CAST(make_timestamp({micros}) AS VARCHAR)", "CAST(timestamp_micros({micros}) AS STRING)"
DUCKDB = Dialect(
    "duckdb",
    '"',
    "list_contains({list}, {item})",
    "row",
    time_template=DUCKDB_MOMENT,
    instant_template="make_timestamptz({micros})",
    no_instant="NULL::timestamptz",
)
DELTA_INSTANT = "arrow_cast({micros}, 'Timestamp(Microsecond, Some(\"UTC\"))')"
DELTA_RS = Dialect("delta_rs", '"', "array_has({list}, {item})", "struct", instant_template=DELTA_INSTANT)
DELTA_RS_ALONE = replace(DELTA_RS, has_one_relation=True)
"""For conditions of scans and deletes, where the table has no alias."""
SPARK = Dialect(
    "spark",
    "`",
    "array_contains({list}, {item})",
    "struct",
    escape="\\",
    time_template=SPARK_MOMENT,
    instant_template="timestamp_micros({micros})",
    no_instant="CAST(NULL AS TIMESTAMP)",
)
POSTGRES_INSTANT = "('1970-01-01 00:00:00+00'::timestamptz + {micros} * interval '1 microsecond')"
POSTGRES = Dialect(
    "postgres",
    '"',
    "{item} = ANY({list})",
    "row",
    overriding="OVERRIDING SYSTEM VALUE ",
    instant_template=POSTGRES_INSTANT,
    no_instant="NULL::timestamptz",
)
MARIADB = Dialect("mariadb", "`", "json_contains({list}, json_quote({item}))", "row")
"""Lists are JSON."""


def text_literal(value: str) -> str:
    """A text constant in the form that all dialects share (standard-conforming strings)."""
    return "'" + value.replace("'", "''") + "'"
