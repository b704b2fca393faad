"""SQL that computes checksums of a table's rows where the rows are. They do not depend on the order of the rows.

Each value becomes its canonical text, which is the same in PostgreSQL, DuckDB and MariaDB. The texts of a row are joined:

- Text is its length in bytes, a colon and the text. NULL has no length. So no text can look like two.
- Every other value ends with a bar, which its text cannot contain. NULL is empty; no other value is.

| kind | text |
| --- | --- |
| integer, decimal | the digits, without zeros at the end of a fraction |
| boolean | `t`, `f` |
| float | that of the double: the digits of a whole number below 10^18, else the shortest digits that give the number |
| bytes | `x` and hexadecimal digits |
| date, timestamp | ISO, without zeros at the end of a fraction |
| timestamptz | the same in UTC, and `+00` |

Different values of a kind have different texts. Equal values may have different texts, which only costs time: fractions from
10^15 on, years before 1. The hash of a row is the first 64 bits of the MD5 of its text.

No text here contains a percent sign, except in names of columns. A driver that replaces parameters needs these doubled.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from replicator.ports.reads import BUCKETS, ChecksumKind, KeyRange

from .dialect import DUCKDB, MARIADB, POSTGRES, Dialect

ALIAS = "t"
"""The alias of the relation in all SQL of this module."""
WIDEST = 38
LOW = 0xFFFFFFFF
WHOLE = "1e18"
"""Whole floats below have the digits of an integer."""
MOST_ARGUMENTS = 90
"""PostgreSQL accepts 100 arguments of a function."""

POSTGRES_INTEGERS = frozenset({"smallint", "integer", "bigint"})
POSTGRES_TEXTS = frozenset({"text", "character varying", "citext", "uuid", "json", "jsonb", "xml", "macaddr", "macaddr8"})
POSTGRES_ADDRESSES = frozenset({"inet", "cidr"})
"""Their cast to text adds a mask that the connector does not send."""
POSTGRES_TIME = "time without time zone"
POSTGRES_KINDS: dict[str, ChecksumKind] = {
    **dict.fromkeys((*POSTGRES_INTEGERS, "oid"), "integer"),
    **dict.fromkeys((*POSTGRES_TEXTS, *POSTGRES_ADDRESSES, POSTGRES_TIME), "text"),
    "boolean": "boolean",
    "real": "float",
    "double precision": "float",
    "bytea": "bytes",
    "date": "date",
    "timestamp without time zone": "timestamp",
    "timestamp with time zone": "timestamptz",
}
MARIADB_KINDS: dict[str, ChecksumKind] = {
    **dict.fromkeys(("tinyint", "smallint", "mediumint", "int", "bigint", "year"), "integer"),
    **dict.fromkeys(("float", "double"), "float"),
    **dict.fromkeys(
        ("char", "varchar", "tinytext", "text", "mediumtext", "longtext", "json", "enum", "set", "uuid", "time"), "text"
    ),
    **dict.fromkeys(("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"), "bytes"),
    "decimal": "decimal",
    "date": "date",
    "datetime": "timestamp",
    "timestamp": "timestamptz",
}

# A session with other settings gets other checksums, so that rows are never equal by mistake: other texts of dates, fewer
# digits of floats (versions before 12 have no shortest digits), texts in another encoding.
POSTGRES_SESSION = (
    "(SELECT concat(nullif(getdatabaseencoding(), 'UTF8'), "
    "CASE WHEN left(current_setting('datestyle'), 3) <> 'ISO' THEN current_setting('datestyle') END, "
    "CASE WHEN current_setting('extra_float_digits')::int < "
    "CASE WHEN current_setting('server_version_num')::int < 120000 THEN 3 ELSE 1 END THEN 'short' END))"
)


@dataclass(frozen=True, slots=True)
class SummedColumn:
    """A column in one database. `type`: its type there. PostgreSQL: as `format_type` has it. MariaDB: as COLUMN_TYPE has it.
    DuckDB: the text of the Arrow type."""

    name: str
    kind: ChecksumKind
    type: str


def kind_of_postgres(sql_type: str, *, enumeration: bool = False) -> ChecksumKind | None:
    """The kind of a source's column of this type, as `format_type` has it; None if it has no checksum."""
    if enumeration:
        return "text"
    if numeric := re.fullmatch(r"numeric\((\d+),(-?\d+)\)", sql_type):
        precision, scale = int(numeric[1]), int(numeric[2])
        return "decimal" if precision <= WIDEST and 0 <= scale <= precision else None
    return POSTGRES_KINDS.get(_without_digits(sql_type))


def kind_of_mariadb(column_type: str, *, precise: bool = False) -> ChecksumKind | None:
    """The kind of a source's column of this type, as COLUMN_TYPE has it; None if it has no checksum. `precise`: the
    connector sends unsigned bigints as decimals, otherwise as signed numbers."""
    base = _base_type(column_type)
    if base == "bit":
        return "boolean" if column_type == "bit(1)" else None
    if base == "bigint" and "unsigned" in column_type and precise:
        return "decimal"
    # Numbers with their own digits are rounded, and zero-filled decimals have more digits.
    if (base in ("float", "double") and "," in column_type) or (base == "decimal" and "zerofill" in column_type):
        return None
    if base == "decimal" and int(re.findall(r"\d+", column_type)[0]) > WIDEST:
        return None
    return MARIADB_KINDS.get(base)


def can_render_postgres(kind: ChecksumKind, sql_type: str) -> bool:
    """True if a target's column of this type has the text of the kind."""
    base = _without_digits(sql_type)
    if kind in ("integer", "decimal"):
        return base in POSTGRES_INTEGERS or base == "numeric"
    return POSTGRES_KINDS.get(base) == kind and base != "oid"


def can_render_duckdb(kind: ChecksumKind, arrow_type: pa.DataType) -> bool:
    """True if a target's column of this stored type has the text of the kind."""
    name = str(arrow_type)
    if name.startswith("decimal128"):
        # DuckDB has no zero before the point if all digits are behind it, and 39 digits are too many.
        fits = 0 <= arrow_type.scale <= arrow_type.precision and arrow_type.scale < WIDEST
        stored_kind = "integer" if fits else None
    elif name.startswith("timestamp[us"):
        stored_kind = "timestamptz" if arrow_type.tz else "timestamp"
    else:
        stored_kind = "integer" if re.fullmatch(r"u?int\d+", name) else DUCKDB_KINDS.get(name)
    return stored_kind == (kind if kind != "decimal" else "integer")


DUCKDB_KINDS: dict[str, ChecksumKind] = {
    "bool": "boolean",
    "float": "float",
    "double": "float",
    **dict.fromkeys(("string", "large_string", "string_view"), "text"),
    **dict.fromkeys(("binary", "large_binary", "binary_view"), "bytes"),
    "date32[day]": "date",
}


def render_sums(
    dialect: Dialect,
    relation: str,
    columns: Sequence[SummedColumn],
    keys: Sequence[SummedColumn],
    *,
    within: KeyRange | None = None,
    excluded: str | None = None,
) -> str:
    """A SELECT of `ports.reads.CHECKSUMS` over a relation, given as SQL.

    - `columns` and `keys` are in the same order on both sides. Key columns count in any case.
    - `within`: bounds of the first key column, which need not have the range's own name here.
    - `excluded`: a relation as SQL, with the names and types of the key columns. Its rows are left out.
    """
    names = {key.name for key in keys}
    hashed = _render_hash(dialect, [*keys, *(column for column in columns if column.name not in names)], checked=True)
    conditions = _render_range(dialect, keys, within)
    if excluded is not None:
        same = " AND ".join(f"e.{dialect.quote_name(key.name)} = {_column(dialect, key)}" for key in keys)
        conditions.append(f"NOT EXISTS (SELECT 1 FROM {excluded} AS e WHERE {same})")
    where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    rows = f"SELECT {_render_bucket(dialect, keys)} AS bucket, {hashed} AS hash FROM {relation} AS {ALIAS}{where}"
    # Without it, the subquery is merged into the outer query, and each hash is computed twice.
    fence = {POSTGRES.name: " OFFSET 0", MARIADB.name: f" LIMIT {2**64 - 1}"}.get(dialect.name, "")
    integer, whole = ("SIGNED", "SIGNED") if dialect is MARIADB else ("int", "bigint")
    q = dialect.quote_name
    return (
        f"SELECT CAST(bucket AS {integer}) AS {q('bucket')}, count(*) AS {q('rows')}, "
        f"CAST(sum(hash & {LOW}) AS {whole}) AS {q('low')}, CAST(sum((hash >> 32) & {LOW}) AS {whole}) AS {q('high')} "
        f"FROM ({rows}{fence}) AS r GROUP BY bucket"
    )


def render_bucket_condition(
    dialect: Dialect, keys: Sequence[SummedColumn], buckets: Sequence[int] | None, within: KeyRange | None = None
) -> str:
    """A condition on rows `t`: true for the rows of these buckets. None: of all."""
    if buckets is None:
        return " AND ".join(_render_range(dialect, keys, within)) or "1 = 1"
    if not buckets:
        return "1 = 0"
    numbers = ", ".join(str(int(bucket)) for bucket in buckets)
    bucket = f"{_render_bucket(dialect, keys)} IN ({numbers})"
    return " AND ".join([*_render_range(dialect, keys, within), bucket])


def _render_range(dialect: Dialect, keys: Sequence[SummedColumn], within: KeyRange | None) -> list[str]:
    if within is None:
        return []
    column = _column(dialect, keys[0])
    above = [] if within.above is None else [f"{column} > {int(within.above)}"]
    return above if within.upto is None else [*above, f"{column} <= {int(within.upto)}"]


def _render_bucket(dialect: Dialect, keys: Sequence[SummedColumn]) -> str:
    """The bucket of a row. BUCKETS is a power of two, so the last bits are the remainder, also of a negative number."""
    last = BUCKETS - 1
    if len(keys) > 1 or keys[0].kind != "integer":
        return f"({_render_hash(dialect, keys, checked=False)} & {last})"
    [key] = keys
    column = _column(dialect, key)
    if dialect is POSTGRES and key.type == "oid":
        number = f"{column}::bigint"
    elif dialect is POSTGRES and _without_digits(key.type) not in POSTGRES_INTEGERS:
        number = f"mod(mod({column}::numeric, {BUCKETS}) + {BUCKETS}, {BUCKETS})::int"
    elif dialect is DUCKDB and key.type.startswith("decimal"):
        number = f"CAST({column} AS HUGEINT)"
    else:
        number = column
    return f"coalesce({number} & {last}, 0)"


def _render_hash(dialect: Dialect, columns: Sequence[SummedColumn], *, checked: bool) -> str:
    """An expression: the hash of a row as a number of 64 bits. `checked`: another hash for unsuitable settings."""
    parts = [part for column in columns for part in TEXTS[dialect.name](column)]
    if dialect is POSTGRES:
        parts = [POSTGRES_SESSION, *parts] if checked else parts
        joined = " || ".join(
            f"concat({', '.join(parts[at : at + MOST_ARGUMENTS])})" for at in range(0, len(parts), MOST_ARGUMENTS)
        )
        return f"('x' || substr(md5({joined}), 1, 16))::bit(64)::bigint"
    joined = f"concat({', '.join(parts)})"
    if dialect is DUCKDB:
        # `md5_number_upper` takes longer.
        return f"CAST('0x' || substr(md5({joined}), 1, 16) AS UBIGINT)"
    # A row with more text than `max_allowed_packet` has no text. It gets a hash that its text could not have.
    return f"ifnull(CAST(conv(substr(md5({joined}), 1, 16), 16, 10) AS UNSIGNED), 4294967297)"


def _column(dialect: Dialect, column: SummedColumn) -> str:
    return dialect.column(ALIAS, column.name)


def _postgres_texts(column: SummedColumn) -> list[str]:
    """Arguments of `concat`, which has the text of each type, and nothing for NULL."""
    c, base = _column(POSTGRES, column), _without_digits(column.type)
    if column.kind == "text":
        if base == POSTGRES_TIME:
            text = f"to_char({c}, 'HH24:MI:SS.US')"
        elif base in POSTGRES_ADDRESSES:
            text = f"nullif(concat({c}), '')"
        else:
            text = c if base in ("text", "character varying") else f"{c}::text"
        return [f"octet_length({text})", "':'", text]
    if column.kind == "float":
        c = f"{c}::float8" if base == "real" else c
        whole = f"{c} = trunc({c}) AND abs({c}) < {WHOLE}"
        return [f"CASE WHEN {whole} THEN ({c}::bigint)::text ELSE {c}::text END", "'|'"]
    if column.kind == "bytes":
        return [f"'x' || encode({c}, 'hex')", "'|'"]
    return [f"trim_scale({c})" if base == "numeric" else c, "'|'"]


def _duckdb_texts(column: SummedColumn) -> list[str]:
    """Arguments of `concat`, which has the text of each type, and nothing for NULL."""
    c = _column(DUCKDB, column)
    if column.kind == "text":
        return [f"strlen({c})", "':'", c]
    if column.kind == "float":
        c = f"CAST({c} AS DOUBLE)"
        text = (
            f"CASE WHEN {c} = trunc({c}) AND abs({c}) < {WHOLE} THEN CAST(TRY_CAST({c} AS BIGINT) AS VARCHAR) "
            f"WHEN isnan({c}) THEN 'NaN' WHEN isinf({c}) THEN CASE WHEN {c} > 0 THEN 'Infinity' ELSE '-Infinity' END "
            f"ELSE CAST({c} AS VARCHAR) END"
        )
        return [text, "'|'"]
    digits = re.match(r"decimal128\((\d+), (\d+)\)", column.type)
    if digits:
        precision, scale = (int(number) for number in digits.groups())
        wide = f"CAST({c} AS DECIMAL({precision + 1}, {scale}))" if precision == scale else c
        return [f"rtrim(rtrim(CAST({wide} AS VARCHAR), '0'), '.')" if scale else c, "'|'"]
    texts = {
        "boolean": f"CASE WHEN {c} THEN 't' WHEN NOT {c} THEN 'f' END",
        "bytes": f"'x' || lower(hex({c}))",
        # An infinite time has no microseconds.
        "timestamptz": f"coalesce(make_timestamp(epoch_us({c})) || '+00', CAST({c} AS VARCHAR))",
    }
    return [texts.get(column.kind, c), "'|'"]


def _mariadb_texts(column: SummedColumn) -> list[str]:
    """Arguments of `concat`, which is NULL if one of them is."""
    c, base = _column(MARIADB, column), _base_type(column.type)
    if column.kind == "text":
        plain = {"uuid": f"CAST({c} AS CHAR)", "time": f"CAST(CAST({c} AS TIME(6)) AS CHAR)"}.get(base, c)
        text = f"CAST(CONVERT({plain} USING utf8mb4) AS BINARY)"
        return [f"if({c} IS NULL, ':', concat(length({text}), ':', {text}))"]
    if column.kind == "float":
        # In the server's text of a double, large exponents have no sign, and small numbers no exponent down to 10^-15.
        d = f"CAST({c} AS DOUBLE)"
        plain, fraction = f"CAST({d} AS CHAR)", f"substr(CAST(abs({d}) AS CHAR), 3)"
        digits = f"trim(LEADING '0' FROM {fraction})"
        text = (
            f"CASE WHEN {d} = truncate({d}, 0) AND abs({d}) < {WHOLE} THEN CAST({d} AS SIGNED) "
            f"WHEN abs({d}) >= {WHOLE} THEN replace({plain}, 'e', 'e+') "
            f"WHEN abs({d}) >= 1e-4 OR locate('e', {plain}) > 0 THEN {plain} "
            f"ELSE concat(if({d} < 0, '-', ''), left({digits}, 1), if(length({digits}) > 1, '.', ''), substr({digits}, 2), "
            f"'e-', lpad(1 + length({fraction}) - length({digits}), 2, '0')) END"
        )
    elif column.kind == "bytes":
        text = f"'x', lower(hex({c}))"
    elif column.kind == "boolean":
        text = f"if({c}, 't', 'f')"
    elif column.kind in ("integer", "decimal") and base != "decimal":
        text = f"CAST({c} AS {'UNSIGNED' if column.kind == 'decimal' else 'SIGNED'})"
    else:
        text = f"CAST({c} AS CHAR)"
        has_fraction = bool(re.search(r",[1-9]" if base == "decimal" else r"\([1-6]\)", column.type))
        text = f"trim(TRAILING '.' FROM trim(TRAILING '0' FROM {text}))" if has_fraction else text
        text = f"{text}, '+00'" if column.kind == "timestamptz" else text
    return [f"if({c} IS NULL, '|', concat({text}, '|'))"]


TEXTS = {POSTGRES.name: _postgres_texts, DUCKDB.name: _duckdb_texts, MARIADB.name: _mariadb_texts}


def _without_digits(sql_type: str) -> str:
    """A type without its digits: `timestamp(3) with time zone` is `timestamp with time zone`."""
    return re.sub(r"\(.*?\)", "", sql_type)


def _base_type(column_type: str) -> str:
    return re.split(r"[ (]", column_type, maxsplit=1)[0].lower()
