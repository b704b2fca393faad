"""Two states of a table compared, row by row."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from .session import open_session


def diff_tables(before: pa.Table, after: pa.Table, keys: Sequence[str]) -> pa.Table:
    """`op` (c, u, d), and the numbers of the rows, `old` and `new`, of every key that is not the same in both: deletes in
    the order of `before`, then the others in the order of `after`.

    Both have the same columns, and every key once, without NULL. DuckDB says what is the same: NULL and NULL, NaN and NaN,
    0.0 and -0.0. Columns go by number, as it folds the case of names.
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
