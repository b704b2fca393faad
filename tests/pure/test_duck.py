"""One DuckDB instance serves many threads, each with its own frames and tables."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa

from adapters.duckdb.session import open_session


def _sum(n: int) -> int:
    with open_session() as connection:
        connection.register("changes", pa.table({"x": [n] * 10}))
        connection.execute("CREATE TEMP TABLE folded AS SELECT sum(x) AS s FROM changes")
        return int(connection.sql("SELECT s FROM folded").fetchall()[0][0])


def test_sessions_do_not_see_each_other():
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(_sum, range(200))) == [10 * n for n in range(200)]
