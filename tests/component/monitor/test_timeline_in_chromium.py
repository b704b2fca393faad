"""A row's timeline in a browser, with hostile values."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from servers.chromium import run_chromium

from adapters.http.server import HttpServer
from replicator.domain.timeline import HistoryEntry
from replicator.ports.reads import ReadTarget, RowHistory
from replicator.ports.runtime import Endpoints

HARM = (
    "<script>document.title='taken'</script>",
    "<img src=x onerror=\"document.title='taken'\">",
    "</td></table><style>body{display:none}</style>",
    "'\"><svg onload=document.title='taken'>",
    "\u202eright to left\u2066",
    "a\x00b\nnew line",
    "<meta http-equiv=refresh content='0;url=http://127.0.0.1:9/'>",
)


class OneRow:
    """A row with these values, and a hostile column name."""

    def history(self, name: str, key: Sequence[str]) -> RowHistory:
        at = datetime(2026, 5, 15, 12, tzinfo=UTC)
        row = {"id": 1, HARM[0]: "column", **{f"v{n}": text for n, text in enumerate(HARM)}}
        new = {**row, "v0": HARM[1], "v4": None, "long": "x" * 5_000, "wide": ["<b>", True, None]}
        position: tuple[Any, ...] = ("cdc.public.t", 0, 7, HARM[3])
        entries = [
            HistoryEntry("c", at, (1,), *position, None, row, ()),
            HistoryEntry("u", at, (2,), *position, row, new, ("v0", "v4", "long", "wide")),
            HistoryEntry("d", None, (3,), *position, new, None, ()),
        ]
        return RowHistory(ReadTarget(name, ("id",), "scd1", "public.t", True), entries, 2)


@pytest.fixture(scope="module")
def page() -> Iterator[str]:
    server = HttpServer({"address": "127.0.0.1:0"})
    reads: Any = OneRow()
    yield f"{server.start(Endpoints(None, reads))}/tables/lake.t/timeline/%3Cscript%3Edocument.title='taken'%3C%2Fscript%3E"
    server.close()


def test_hostile_values_are_shown_and_not_executed(page: str, tmp_path: Path) -> None:
    done = run_chromium(tmp_path, "--dump-dom", page)
    document = done.stdout
    assert "<title>lake.t id = &lt;script&gt;" in document, document[:500]
    for element in ("<script", "<img", "<svg", "<meta http-equiv", "onerror=&quot;", "<style>body{"):
        assert element not in document.replace("&lt;", "").replace("<style>\n", ""), element
    assert document.count("<li class=") == 3 and document.count("<style>") == 1
    assert "5,000 characters" in document and '["&lt;b&gt;",true,null]' in document
    assert "Content Security Policy" not in done.stderr, "the page breaks its own policy"


def test_operations_have_their_colours(page: str, tmp_path: Path) -> None:
    """The policy of the page allows its own style: the line and the colours are visible."""
    run_chromium(tmp_path, f"--screenshot={tmp_path / 'page.png'}", "--window-size=1000,1400", page)
    colours = pixels((tmp_path / "page.png").read_bytes())
    created, updated, deleted = (0x08, 0x7F, 0x3A), (0x1D, 0x5F, 0xBF), (0xB3, 0x26, 0x1E)
    assert {created, updated, deleted} <= colours, "dots in the colours of the operations"


def pixels(png: bytes) -> set[tuple[int, ...]]:
    """The colours in a PNG with 8 bits a channel."""
    at, data, width, channels = 8, b"", 0, 3
    while at < len(png):
        size, kind = struct.unpack(">I4s", png[at : at + 8])
        body = png[at + 8 : at + 8 + size]
        if kind == b"IHDR":
            width, _, depth, colour = struct.unpack(">IIBB", body[:10])
            assert depth == 8
            channels = {2: 3, 6: 4}[colour]
        data += body if kind == b"IDAT" else b""
        at += size + 12
    raw, stride, before, found = zlib.decompress(data), width * channels, bytes(width * channels), set()
    for start in range(0, len(raw), stride + 1):
        before = unfilter_line(raw[start], raw[start + 1 : start + 1 + stride], before, channels)
        found.update(zip(*(before[n::channels] for n in range(3)), strict=True))
    return found


def unfilter_line(kind: int, line: bytes, above: bytes, step: int) -> bytes:
    """A line of a PNG, decoded by the filters of the PNG specification."""
    if kind == 0:
        return line
    if kind == 2:
        return bytes((a + b) & 0xFF for a, b in zip(line, above, strict=True))
    done = bytearray(line)
    for at in range(len(line)):
        left, up, corner = (done[at - step] if at >= step else 0), above[at], (above[at - step] if at >= step else 0)
        done[at] = (line[at] + (left, left, up, (left + up) // 2, paeth(left, up, corner))[kind]) & 0xFF
    return bytes(done)


def paeth(left: int, up: int, corner: int) -> int:
    guess = left + up - corner
    return min((left, up, corner), key=lambda value: abs(guess - value))
