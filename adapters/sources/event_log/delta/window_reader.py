"""Records of a window, read in this process."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc

from replicator.domain.change import RAW
from replicator.domain.event_log import EVENT_LOG
from replicator.domain.policy.policies import TIMESTAMP

from ....event_log.frames import drop_repeated, payload_bytes, sort_records
from ....event_log.records import to_raw
from ...delta_reader.window_size import WindowSize
from .backlog import ReadWindow
from .open_files import OpenLogFiles

STORED = pa.schema([pa.field(c.name, c.type) for c in EVENT_LOG if c.name in RAW.names and c.name != "topic"])
TIME = pa.field("ts", TIMESTAMP)


@dataclass(frozen=True, slots=True)
class Period:
    """A range of source times that includes both ends. Records without a time belong to every range."""

    since: datetime | None = None
    until: datetime | None = None

    @property
    def stored_schema(self) -> pa.Schema:
        """The columns to read from a log's files."""
        return STORED.append(TIME) if self.since or self.until else STORED

    def filter_rows(self, piece: pa.Table) -> pa.Table:
        """The rows of a log in the range, and rows without a time."""
        keep = [pc.greater_equal(piece["ts"], self.since)] if self.since else []
        keep += [pc.less_equal(piece["ts"], self.until)] if self.until else []
        return piece.filter(pc.fill_null(reduce(pc.and_, keep), True)) if keep else piece


ALWAYS = Period()


def read_records(window: ReadWindow, pace: WindowSize, files: OpenLogFiles, period: Period = ALWAYS) -> pa.Table:
    """The records of `window` in a period, as a raw frame by topic, partition and offset, without duplicates. Raises
    WindowTooLarge soon after a limit is exceeded, and FileRewritten if a file does not exist any more."""
    pieces, count, size = [], 0, 0
    for file in window.files:
        for piece in files.read_rows(file, window):
            inside = to_raw(period.filter_rows(piece))
            count, size = count + inside.num_rows, size + payload_bytes(inside)
            pace.refuse_more(count, size)
            if inside.num_rows:
                pieces.append(inside)
    files.mark_done(window)
    return drop_repeated(sort_records(pa.concat_tables(pieces))) if pieces else RAW.empty_table()
