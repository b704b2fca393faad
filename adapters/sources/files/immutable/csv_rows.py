"""Rows of CSV files: a line end inside a quoted value is part of the value (RFC 4180)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from replicator.domain.errors import EnvironmentProblem

from ....decoders.common.csv_dialect import CsvDialect, escape_sign
from ..file_list import ArchiveFile
from ..line_reader import LongLine


class CsvRowJoiner:
    """Joins lines to rows. A value is quoted if its first character is a quote, as in the decoder."""

    def __init__(self, dialect: CsvDialect) -> None:
        self._quote = (dialect.quote or "").encode()
        self._quoted = re.compile(b"(?!)")
        if not self._quote:
            return
        d, q, e = (escape_sign(sign) if sign else "" for sign in (dialect.delimiter, dialect.quote, dialect.escape))
        escaped = f"|{e}(?s:.)" if e else ""
        inside, plain = f"(?:[^{q}{e}]|{q}{q}{escaped})*+", f"(?:[^{d}{e}]{escaped})*+"
        begun = f"(?:(?!{q}){plain}|{q}{inside}{q}(?!{q}){plain})"
        self._quoted = re.compile(f"{q}{inside}{q}".encode())
        # A row with an open last value; the end of such a value, and the rest of its row.
        self._opens = re.compile(f"{begun}(?:{d}{begun})*+{d}{q}{inside}|{q}{inside}".encode())
        self._closes = re.compile(f"{inside}{q}(?!{q}){plain}({d})?".encode())

    def join_lines(self, lines: Iterable[bytes], longest: int) -> Iterator[bytes]:
        """The rows in `lines`, with their line ends. A row longer than `longest` bytes is a LongLine and ends there. Its
        open quote counts as a character, so that the rest of the file is read."""
        row: list[bytes] = []
        size, is_open = 0, False
        for line in lines:
            if isinstance(line, LongLine):
                yield LongLine.from_text(b"".join([*row, line]), size + line.size)
                row, size, is_open = [], 0, False
                continue
            if not is_open and (not self._quote or self._quote not in line):
                yield line
                continue
            is_open = self._is_open(line, within=is_open)
            row.append(line)
            size += len(line)
            if not is_open or size > longest:
                text = b"".join(row)
                yield LongLine.from_text(text, size) if size > longest else text
                row, size, is_open = [], 0, False
        if row:
            yield b"".join(row)

    def check_header(self, row: bytes, file: ArchiveFile) -> bytes:
        """Returns `row`, the header row of the file. Raises EnvironmentProblem for a CR within it: all lines may end in
        CR alone, and then the whole file would be its header."""
        if b"\r" in self._quoted.sub(b"", row):
            raise EnvironmentProblem(
                f"The header row of {file.path} contains a carriage return: lines that end in CR alone are not supported.",
                next_step="Write the file again with lines that end in LF or CR LF, or remove it.",
            )
        return row

    def _is_open(self, line: bytes, *, within: bool) -> bool:
        """True if a quoted value continues after the line. `within`: the line begins in a quoted value."""
        if within:
            closed = self._closes.match(line)
            if closed is None:
                return True
            if closed[1] is None:
                return False
            line = line[closed.end() :]
        return self._opens.fullmatch(line) is not None
