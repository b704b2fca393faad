"""The functions of AUTO CDC programs: flows and tables for the pipeline of the enclosing `with` block, and `col`, `expr`,
`struct` and `spark.readStream.table`."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from replicator.domain.errors import ConfigProblem

if TYPE_CHECKING:
    from .pipeline import Pipeline

# The calls of AUTO CDC as functions. Each adds to the pipeline of the enclosing `with` block.

_ACTIVE: ContextVar[Pipeline | None] = ContextVar("replicator_pipeline", default=None)


def set_active(pipeline: Pipeline) -> Callable[[], None]:
    """Make the functions add to `pipeline`. Returns a function that undoes this."""
    token = _ACTIVE.set(pipeline)
    return lambda: _ACTIVE.reset(token)


def create_auto_cdc_flow(*arguments: Any, **parameters: Any) -> None:
    """As `Pipeline.create_auto_cdc_flow`, for the pipeline of the `with` block. ConfigProblem outside of one."""
    _get_active("create_auto_cdc_flow").create_auto_cdc_flow(*arguments, **parameters)


def create_auto_cdc_from_snapshot_flow(*arguments: Any, **parameters: Any) -> None:
    """As `Pipeline.create_auto_cdc_from_snapshot_flow`, for the pipeline of the `with` block. ConfigProblem outside of
    one."""
    _get_active("create_auto_cdc_from_snapshot_flow").create_auto_cdc_from_snapshot_flow(*arguments, **parameters)


def create_streaming_table(*arguments: Any, **parameters: Any) -> None:
    """As `Pipeline.create_streaming_table`, for the pipeline of the `with` block. ConfigProblem outside of one."""
    _get_active("create_streaming_table").create_streaming_table(*arguments, **parameters)


def create_target_table(*arguments: Any, **parameters: Any) -> None:
    """As `Pipeline.create_target_table`, for the pipeline of the `with` block. ConfigProblem outside of one."""
    _get_active("create_target_table").create_target_table(*arguments, **parameters)


def temporary_view(*arguments: Any, **parameters: Any) -> Any:
    """As `Pipeline.temporary_view`, for the pipeline of the `with` block. ConfigProblem outside of one."""
    return _get_active("temporary_view").temporary_view(*arguments, **parameters)


def _get_active(call: str) -> Pipeline:
    found = _ACTIVE.get()
    if found is None:
        raise ConfigProblem(
            f"{call}() is called outside of a pipeline",
            next_step="Put it into `with Pipeline(...):`, or call it as a method of the pipeline.",
        )
    return found


# `col`, `expr`, `struct` and `spark.readStream.table`, as programs for AUTO CDC call them.
#
# A config contains text, so these functions return text. Spark's own Columns are refused, since their text cannot be parsed.


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
