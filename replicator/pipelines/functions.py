"""`col`, `expr`, `struct` and `spark.readStream.table`, as programs for AUTO CDC call them.

A config contains text, so these functions return text. Spark's own Columns are refused, since their text cannot be parsed.
"""

from __future__ import annotations


def col(name: str) -> str:
    """The column of that name."""
    return name


def expr(text: str) -> str:
    """The condition `text`."""
    return text


def struct(*columns: str) -> list[str]:
    """Several columns as one sequence, compared from left to right."""
    return list(columns)


class StreamReader:
    """The object `spark.readStream` of these programs."""

    def table(self, name: str) -> str:
        """A table of a source, `SOURCE.TABLE`, as the result of a view or as the `source` of a flow."""
        return name


class SparkNames:
    """The object `spark` of these programs. It is not a Spark session, and needs none."""

    readStream = StreamReader()  # noqa: N815 - Spark's name


spark = SparkNames()
