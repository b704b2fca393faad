"""The dialect of CSV files, of AWS DMS and of other tools, shared by sources and decoders."""

from __future__ import annotations

from functools import cached_property
from typing import Annotated

from pyarrow import csv
from pydantic import BeforeValidator, ValidationError, model_validator

from replicator.domain.errors import ConfigProblem
from replicator.ports.options import Character, CsvSettings

NONE = "none"


Quote = Annotated[Character | None, BeforeValidator(lambda said: None if said == NONE else said)]


class CsvDialect(CsvSettings):
    """The dialect of CSV files, as its readers need it. `quote`: None or `none` if nothing is quoted."""

    quote: Quote = '"'  # type: ignore[assignment]

    @classmethod
    def from_settings(cls, settings: CsvSettings | None) -> CsvDialect:
        """The dialect of a section of the config. Raises ConfigProblem for one that contradicts itself."""
        try:
            return cls() if settings is None else cls.model_validate(settings.model_dump())
        except ValidationError as error:
            wrong = "; ".join(e["msg"] for e in error.errors(include_input=False, include_url=False))
            raise ConfigProblem(f"`csv` of a source is not valid: {wrong}.", next_step="Correct it.") from None

    @model_validator(mode="after")
    def _check_signs(self) -> CsvDialect:
        said = [sign for sign in (self.delimiter, self.quote, self.escape) if sign is not None]
        if len(set(said)) < len(said):
            raise ValueError("delimiter, quote and escape must differ")
        if self.null_value == self.unsent_value:
            raise ValueError("null_value and unsent_value must differ")
        return self

    @property
    def signs(self) -> tuple[str, ...]:
        """The characters that can make a text more than one row. A text without them is one row."""
        return ("\n", "\r", *(sign for sign in (self.quote, self.escape) if sign))

    @cached_property
    def row_pattern(self) -> str:
        """The regular expression (RE2) of one complete row: an RFC 4180 record, in which unquoted fields may contain
        quotes, as readers allow. Rows that match can be concatenated, because none continues in the next."""
        delimiter, quote = escape_sign(self.delimiter), escape_sign(self.quote) if self.quote else ""
        escape = escape_sign(self.escape) if self.escape else ""
        escaped = rf"|{escape}[^\r\n]" if escape else ""
        plain = rf"(?:(?:[^{quote}{delimiter}{escape}\r\n]{escaped})(?:[^{delimiter}{escape}\r\n]{escaped})*)?"
        within = rf"|{escape}(?s:.)" if escape else ""
        quoted = rf"{quote}(?:[^{quote}{escape}]|{quote}{quote}{within})*{quote}"
        field = f"(?:{quoted}|{plain})" if quote else plain
        return rf"\A{field}(?:{delimiter}{field})*\z"

    @property
    def parse_options(self) -> dict[str, object]:
        """The same as options of `pyarrow.csv.ParseOptions`."""
        return {"delimiter": self.delimiter, "quote_char": self.quote or False, "escape_char": self.escape or False}

    def convert_options(self, names: list[str], types: object) -> csv.ConvertOptions:
        """Options that read every column as text. Only an unquoted null value is NULL."""
        return csv.ConvertOptions(
            column_types=dict.fromkeys(names, types),
            null_values=[self.null_value],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
            check_utf8=False,
        )


def escape_sign(sign: str) -> str:
    """A regular expression that matches the character literally."""
    return rf"\x{ord(sign):02x}"
