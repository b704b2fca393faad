"""Why the rows of a table cannot be read on from where they were read."""

from __future__ import annotations

from replicator.domain.errors import DataLoss

from .places import changes_of

RESYNC = "`replicator lanes resync LANE`"
ANEW = f"Load the table as it is now with {RESYNC}, or accept the loss with `replicator lanes skip LANE`."
KEEP = "Longer `delta.logRetentionDuration` and `delta.deletedFileRetentionDuration` of the table keep more for a reader."


def _behind(name: str, version: int) -> str:
    """The command that leaves a version out. No start would find that it is lost."""
    return f"`replicator lanes skip LANE --until {name}:0:{changes_of(version + 1)}`"


def cleaned(name: str, version: int) -> DataLoss:
    """The commit of a version that is yet to be read is gone."""
    return DataLoss(f"Version {version} of the table {name} is no longer in its log.", next_step=f"{ANEW} {KEEP}")


def vacuumed(name: str, version: int, path: str) -> DataLoss:
    """A file is gone that a version needs which is yet to be read."""
    return DataLoss(
        f"Version {version} of the table {name} cannot be read any more: its file {path} was removed (VACUUM).",
        next_step=f"Load the table as it is now with {RESYNC}, or accept the loss with {_behind(name, version)}. {KEEP}",
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
        f"with {RESYNC}; or accept the loss with {_behind(name, version)}.",
    )


def without_feed(name: str, version: int) -> DataLoss:
    """A version was written while the feed was off."""
    return DataLoss(
        f"Version {version} of the table {name} was written without a change data feed.",
        next_step="Set delta.enableChangeDataFeed on the table. Then load it as it is now with "
        f"{RESYNC}, or accept the loss with {_behind(name, version)}.",
    )
