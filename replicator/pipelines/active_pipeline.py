"""The calls of AUTO CDC as functions. Each adds to the pipeline of the enclosing `with` block."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from replicator.domain.errors import ConfigProblem

if TYPE_CHECKING:
    from .pipeline import Pipeline

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
