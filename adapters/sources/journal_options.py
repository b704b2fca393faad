"""Options of sources that write rows to a journal, a Delta table of their own, and read that."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Self

from replicator.domain.transform.columns import Mask
from replicator.ports.adapter_options import SourceOptions, given
from replicator.ports.options import IS_INSTANCE

CHANGE, VERSION = "_change", "_snapshot"
"""Columns of the journal: the operation, and the version of the read."""


class JournalOptions(SourceOptions):
    """Base of the options of these sources."""

    state: str = given("")
    """The folder for state between runs."""
    keys: tuple[str, ...] = given(())
    """The key columns."""
    columns: dict[str, str] = given({}, alias="schema")
    """The declared columns, with their types."""
    private: dict[str, Annotated[Mask, IS_INSTANCE]] = given({})
    """The masks of columns."""

    @classmethod
    def read(cls, options: Self | Mapping[str, Any]) -> Self:
        """See `AdapterOptions.read`. Also ConfigProblem without a folder for the journal."""
        settings = super().read(options)
        if not settings.state:
            raise cls.refuse("state is missing")
        return settings

    @property
    def name(self) -> str:
        """The name of the table and of the stream."""
        raise NotImplementedError

    @property
    def stateful_table(self) -> str | None:
        return self.name

    def for_decoder(self, section: Mapping[str, Any]) -> Mapping[str, Any]:
        """See `SourceOptions.for_decoder`: the source makes the records."""
        return {**section, "operation_column": CHANGE, "sequence_columns": (VERSION,)}
