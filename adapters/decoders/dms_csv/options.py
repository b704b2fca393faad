"""Options of the DMS CSV decoder, with validation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field

from replicator.domain.errors import ConfigProblem

from ...arrow.text_values import NAMES, find_text_reader
from ..common import row_options as common
from ..common.csv_dialect import CsvDialect
from .cells import is_writable

FORMAT = "dms_csv"


class DmsCsvOptions(common.RowOptions):
    """Options of `DmsCsvDecoder`: see `RowOptions`, and `CsvDialect` for `csv`. The defaults are those of DMS."""

    USUAL: ClassVar[Mapping[str, tuple[str, ...]]] = {"create": ("I",), "update": ("U",), "delete": ("D",)}

    operation_column: str = Field("Op", min_length=1)
    tombstones: Literal["ignore"] | dict[str, Literal["ignore"]] = "ignore"
    csv: CsvDialect = CsvDialect()


def read_options(options: Mapping[str, object]) -> DmsCsvOptions:
    """The validated options. Raises ConfigProblem that names every wrong option without its value."""
    found = common.read_options(DmsCsvOptions, options, FORMAT)
    common.refuse_types(found.declared, NAMES, lambda node: find_text_reader(node.type) is not None)
    for table, masks in found.private.items():
        for column, mask in masks.items():
            if mask.kind == "fixed" and not is_writable(mask.text, found.csv):
                raise ConfigProblem(
                    f"'columns' of table {table} masks {column!r} with a text that its CSV cannot hold without quotes",
                    next_step="Choose a text without the delimiter and line ends, or `mask: nothing`.",
                )
    return found
