"""Errors for rows of a table that cannot be read any more."""

from __future__ import annotations

from replicator.domain.errors import DataLoss
from replicator.domain.remedies import describe_reload_or_skip

from .offsets import first_change_offset

KEEP = "Longer `delta.logRetentionDuration` and `delta.deletedFileRetentionDuration` of the table keep more for a reader."


def _position_after(name: str, version: int) -> str:
    """The position after a version, for `--until`. A start from there does not detect the loss of the version."""
    return f"{name}:0:{first_change_offset(version + 1)}"


def cleaned_error(name: str, version: int) -> DataLoss:
    """The error for a version whose commit is missing before it was read."""
    return DataLoss(
        f"Version {version} of the table {name} is no longer in its log.", next_step=f"{describe_reload_or_skip()} {KEEP}"
    )


def vacuumed_error(name: str, version: int, path: str) -> DataLoss:
    """The error for a version with a missing file before it was read."""
    return DataLoss(
        f"Version {version} of the table {name} cannot be read any more: its file {path} was removed (VACUUM).",
        next_step=f"{describe_reload_or_skip(until=_position_after(name, version))} {KEEP}",
    )


def other_table_error(name: str) -> DataLoss:
    """The error for a table that was replaced by another one."""
    return DataLoss(
        f"The table {name} was created again: it is another table than before.",
        next_step="Restore the earlier table, or load this one with `replicator lanes resync LANE`.",
    )


def rewritten_error(name: str, version: int, operation: str) -> DataLoss:
    """The error for a version that did more than append rows."""
    said = f" ({operation})" if operation else ""
    return DataLoss(
        f"Version {version} of the table {name} changes or deletes rows{said}, and the source reads appended ones only; "
        "with `changes: feed` it reads them all.",
        next_step="Write `changes: feed` for this source (the table needs delta.enableChangeDataFeed), and load its targets "
        "with `replicator lanes resync LANE`; or accept the loss with "
        f"`replicator lanes skip LANE --until {_position_after(name, version)}`.",
    )


def missing_feed_error(name: str, version: int) -> DataLoss:
    """The error for a version that was written without a change data feed."""
    return DataLoss(
        f"Version {version} of the table {name} was written without a change data feed.",
        next_step=f"Set delta.enableChangeDataFeed on the table. Then "
        f"{describe_reload_or_skip(until=_position_after(name, version))}",
    )
