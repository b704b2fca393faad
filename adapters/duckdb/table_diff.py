"""Row by row comparison of two states of a table."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from .session import open_session


def diff_tables(before: pa.Table, after: pa.Table, keys: Sequence[str]) -> pa.Table:
    """`op` (c, u, d) and the row numbers `old` and `new` of every key whose rows differ. Deletes are in the order of
    `before`, then the others in the order of `after`.

    Both tables have the same columns, and unique keys without NULL. Equality is DuckDB's: NULL equals NULL, NaN equals
    NaN, 0.0 equals -0.0. The query numbers the columns, since DuckDB ignores the case of names.
    """
    names = after.schema.names
    by = [f"c{names.index(key)}" for key in keys]
    same = " AND ".join(f"n.{c} = o.{c}" for c in by)
    others = [f"(n.c{i} IS DISTINCT FROM o.c{i})" for i, name in enumerate(names) if name not in keys]
    with open_session() as duck:
        duck.register("o", _number_rows(before))
        duck.register("n", _number_rows(after))
        found = duck.sql(
            f"""SELECT CASE WHEN n.i IS NULL THEN 'd' WHEN o.i IS NULL THEN 'c' ELSE 'u' END AS op, o.i AS old, n.i AS new
            FROM o FULL JOIN n ON {same}
            WHERE n.i IS NULL OR o.i IS NULL OR {" OR ".join(others) or "false"}
            ORDER BY new NULLS FIRST, old"""
        )
        return pa.table(found.to_arrow_table())


def _number_rows(rows: pa.Table) -> pa.Table:
    names = [*(f"c{i}" for i in range(rows.num_columns)), "i"]
    return pa.table([*rows.columns, pa.array(range(rows.num_rows), pa.int64())], names=names)
