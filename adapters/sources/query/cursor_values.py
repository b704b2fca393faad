"""Values of the cursor column: parsed, written as text, and reduced by the overlap."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
from pyarrow import types as t

from replicator.domain.errors import ConfigProblem
from replicator.ports.options import to_timedelta

from .options import QuerySettings

Value = Any
"""A date, datetime, int or Decimal without places. All values of one column have the same type and are comparable."""
LATE = timedelta(minutes=5)
"""The default overlap for times; for numbers it is `NUMBERS`."""
NUMBERS = 1_000


class CursorValues:
    """Operations on values of a cursor column with this type. Raises ConfigProblem for an unsuitable column, and for
    options that do not fit it."""

    def __init__(self, options: QuerySettings, kind: pa.DataType) -> None:
        self.kind = kind
        self._name = options.cursor_column
        self.is_time = t.is_timestamp(kind) or t.is_date(kind)
        whole = t.is_integer(kind) or (t.is_decimal(kind) and kind.scale <= 0)
        if not (self.is_time or whole):
            raise ConfigProblem(
                f"Column {self._name!r} of {options.name} is {kind}: it cannot show which rows are new.",
                next_step="Name a column of times, dates or whole numbers in `cursor_column`.",
            )
        self._overlap = self._check(to_timedelta(options.overlap) if isinstance(options.overlap, str) else options.overlap)
        self.first = None if options.start_after is None else self._parse_option(options.start_after)

    def lower_bound(self, border: Value | None) -> Value | None:
        """The lower limit of the next read after one up to `border`."""
        if border is None:
            return None
        if t.is_date(self.kind):
            return border - timedelta(days=math.ceil(self._overlap / timedelta(days=1)))
        try:
            return border - self._overlap
        except OverflowError:
            return None

    def advance(self, border: Value | None, value: Value, clock: Value | None) -> Value:
        """The position after `value` was read. It never decreases, and never exceeds the server's clock: otherwise one row
        with a time in 2099 would hide all later rows."""
        reached = value if clock is None else min(value, clock)
        return reached if border is None else max(border, reached)

    def to_text(self, value: Value) -> str:
        """The value as text for `from_text`."""
        return value.isoformat() if self.is_time else str(value)

    def from_text(self, text: str) -> Value:
        """The value of a text from `to_text`."""
        if t.is_timestamp(self.kind):
            return datetime.fromisoformat(text)
        if t.is_date(self.kind):
            return date.fromisoformat(text)
        return Decimal(text) if t.is_decimal(self.kind) else int(text)

    def normalize(self, value: Value) -> Value:
        """A value from Arrow or a driver, in a form for comparisons."""
        if t.is_timestamp(self.kind):
            if isinstance(value, str):
                value = datetime.fromisoformat(value)
            if self.kind.tz is None:
                return value.replace(tzinfo=None)
            return value.astimezone(UTC) if value.tzinfo else value.replace(tzinfo=UTC)
        if t.is_date(self.kind):
            return value.date() if isinstance(value, datetime) else value
        return Decimal(value) if t.is_decimal(self.kind) else int(value)

    def _check(self, said: int | timedelta | None) -> Any:
        if said is None:
            return LATE if self.is_time else NUMBERS
        if isinstance(said, timedelta) != self.is_time:
            form = "a time such as `5 minutes`" if self.is_time else "a number such as `1000`"
            raise ConfigProblem(
                f"'overlap' does not go with column {self._name!r}, which is {self.kind}.", next_step=f"Write {form}."
            )
        return said

    def _parse_option(self, said: int | str) -> Value:
        try:
            value = self._parse(said)
        except (TypeError, ValueError, ArithmeticError):
            form = "a time such as 2019-11-20 00:00:00" if self.is_time else "a whole number"
            raise ConfigProblem(
                f"'start_after' is no value of column {self._name!r}, which is {self.kind}.", next_step=f"Write {form}."
            ) from None
        if t.is_timestamp(self.kind) and (value.tzinfo is None) != (self.kind.tz is None):
            does, form = ("has a", "2019-11-20 00:00:00+00:00") if self.kind.tz else ("has no", "2019-11-20 00:00:00")
            raise ConfigProblem(
                f"Column {self._name!r} {does} time zone, unlike 'start_after'.", next_step=f"Write it as {form}."
            )
        return self.normalize(value)

    def _parse(self, said: int | str) -> Value:
        if t.is_timestamp(self.kind):
            return datetime.fromisoformat(str(said))
        if t.is_date(self.kind):
            return date.fromisoformat(str(said).removesuffix(" 00:00:00"))
        return int(str(said))
