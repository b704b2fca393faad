"""`col`, `expr`, `struct` and `spark.readStream.table`, as programs for AUTO CDC call them.

A config holds text, so these return text: what works here works in a file. Spark's own Columns are refused, since their text
cannot be read back.
"""

from __future__ import annotations


def col(name: str) -> str:
    """The column of that name."""
    return name


def expr(text: str) -> str:
    """The condition that `text` writes."""
    return text


def struct(*columns: str) -> list[str]:
    """Several columns as one sequence, compared from left to right."""
    return list(columns)


class StreamReader:
    """What `spark.readStream` is."""

    def table(self, name: str) -> str:
        """A table of a source, `SOURCE.TABLE`: what a view returns, and a flow's `source`."""
        return name


class SparkNames:
    """What `spark` is in these programs; no Spark session, and none is needed."""

    readStream = StreamReader()  # noqa: N815 - Spark's name


spark = SparkNames()
