"""Options of the adapters in `box`. Every command imports this module."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from replicator.ports.adapter_options import DecoderOptions, LogSinkOptions, SinkOptions
from replicator.ports.options import ConfigPath


class BoxFormatOptions(DecoderOptions):
    """Records in boxes."""

    what: ClassVar[str] = "a box"

    label: Literal["up", "down"] = "up"
    """The side with the label."""


class BoxLogOptions(LogSinkOptions):
    """An event log as Arrow files in a folder."""

    what: ClassVar[str] = "a box"
    assumed: ClassVar[Mapping[str, Any]] = {"kind": "box_log"}

    kind: Literal["box_log"]
    path: ConfigPath
    """The folder."""

    @property
    def reader(self) -> str:
        return "box_log"

    @property
    def folder(self) -> str:
        return self.path

    @classmethod
    def place_dead_letters(cls, section: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"kind": "box_letters", "path": f"{section.get('path')}/rejected"}


class BoxTableOptions(SinkOptions):
    """Gold tables as Arrow files in a folder."""

    what: ClassVar[str] = "a box"
    assumed: ClassVar[Mapping[str, Any]] = {"kind": "box_tables"}
    has_table_options: ClassVar[bool] = False
    holds_projections: ClassVar[bool] = True

    kind: Literal["box_tables"]
    path: ConfigPath
    """The folder."""
