"""Why the rows of a table cannot be read on from where they were read."""

from __future__ import annotations

from replicator.domain.errors import DataLoss
from replicator.domain.remedies import reload_or_skip

from .places import changes_of

KEEP = "Longer `delta.logRetentionDuration` and `delta.deletedFileRetentionDuration` of the table keep more for a reader."


def _behind(name: str, version: int) -> str:
    """The position after a version, for `--until`: no start would find that the version is lost."""
    return f"{name}:0:{changes_of(version + 1)}"


def cleaned(name: str, version: int) -> DataLoss:
    """The commit of a version that is yet to be read is gone."""
    return DataLoss(
        f"Version {version} of the table {name} is no longer in its log.", next_step=f"{reload_or_skip()} {KEEP}"
    )


def vacuumed(name: str, version: int, path: str) -> DataLoss:
    """A file is gone that a version needs which is yet to be read."""
    return DataLoss(
        f"Version {version} of the table {name} cannot be read any more: its file {path} was removed (VACUUM).",
        next_step=f"{reload_or_skip(until=_behind(name, version))} {KEEP}",
    )


def another(name: str) -> DataLoss:
    """The folder holds a table that was made anew."""
    return DataLoss(
        f"The table {name} is another one than the one that was read: it was made anew.",
        next_step="Put the one that was read back, or load this one with `replicator lanes resync LANE`.",
    )


def rewritten(name: str, version: int, operation: str) -> DataLoss:
    """A version did not only append rows."""
    said = f" ({operation})" if operation else ""
    return DataLoss(
        f"Version {version} of the table {name} changes or deletes rows{said}, and the source reads appended ones only; "
        "with `changes: feed` it reads them all.",
        next_step="Write `changes: feed` for this source (the table needs delta.enableChangeDataFeed), and load its targets "
        "with `replicator lanes resync LANE`; or accept the loss with "
        f"`replicator lanes skip LANE --until {_behind(name, version)}`.",
    )


def without_feed(name: str, version: int) -> DataLoss:
    """A version was written while the feed was off."""
    return DataLoss(
        f"Version {version} of the table {name} was written without a change data feed.",
        next_step=f"Set delta.enableChangeDataFeed on the table. Then {reload_or_skip(until=_behind(name, version))}",
    )
