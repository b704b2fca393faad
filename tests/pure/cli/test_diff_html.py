"""The report of a comparison is one safe document with everything in it."""

import re
from html.parser import HTMLParser

from support.lane_diffs import make_diff

from replicator.cli.diff_report import DOCUMENT_COLUMNS, render_report
from replicator.domain.differences import RowDifference

VOID = {"meta"}
OPTIONAL = {"tr", "td", "th", "thead", "tbody", "dt", "dd", "li", "p", "html"}
HOSTILE = "<script>alert('1')</script>\"&\x1b\u202e"


class Document(HTMLParser):
    """Collects tags, attributes and texts, and checks that tags are closed."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.open, self.texts, self.attributes = [], [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID | OPTIONAL:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in OPTIONAL:
            assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open[-1:] != ["style"]:
            self.texts.append(data)

    @property
    def text(self):
        return "".join(self.texts)


def render(*diffs, **run):
    document = Document(render_report(diffs, {"pipeline": "shop", **run}))
    assert document.open == []
    return document


def test_report_has_all_of_a_lane():
    one = RowDifference("different", {"id": 1}, {"status": ("open", "shut")}, "A trigger has changed it.")
    diff = make_diff(
        different=3, rows=1_234_567, differences=(one,), position=("0/1A", "0/1F"), commit="version 42",
        not_compared=("Column `payload` has no checksum.",),
    )  # fmt: skip
    text = render(diff, make_diff(lane="target.orders", against="log"), command="replicator diff public.orders").text
    for part in (
        "Comparison of shop", "2 lanes compared, 3 rows differ in 1 lane", "lake.orders", "3 rows differ (3 different)",
        "0/1A (first rows)", "0/1F (last rows)", "version 42", "1,234,567", "2026-11-28 22:10:11+00:00", "id=1", "'open'",
        "'shut'", "A trigger has changed it.", "2 more rows differ.", "--repair", "Column payload has no checksum.",
        "target.orders", "the event log", "replicator diff public.orders",
    ):  # fmt: skip
        assert part in text, part


def test_only_the_differing_part_is_marked():
    one = RowDifference("different", {"id": 1}, {"status": ("status open", "status shut"), "note": (None, "NULL")})
    page = render_report([make_diff(different=1, differences=(one,))], {})
    assert re.findall("<mark>(.*?)</mark>", page) == ["open", "shut", "NULL", "NULL"]


def test_absent_row_is_no_null():
    missing = RowDifference("missing", {"id": 1}, {"note": (None, None)})
    extra = RowDifference("extra", {"id": 2}, {"note": (None, "x")})
    page = render_report([make_diff(missing=1, extra=1, differences=(missing, extra))], {})
    assert re.findall("data-side=(.*?)>(.*?)(?=<td|</tr|<tr|</table)", page.partition("<article>")[2]) == [
        ("expected", "NULL"), ("actual", "<i>no row</i>"), ("expected", "<i>no row</i>"), ("actual", "&#x27;x&#x27;"),
    ]  # fmt: skip


def test_everything_is_escaped():
    one = RowDifference("different", {HOSTILE: HOSTILE}, {HOSTILE: (HOSTILE, HOSTILE + "x")}, HOSTILE)
    extra = RowDifference("extra", {"id": 1}, {HOSTILE: (None, HOSTILE)})
    diff = make_diff(
        lane=HOSTILE, table=HOSTILE, position=(HOSTILE, HOSTILE + "2"), commit=HOSTILE, begun=HOSTILE, different=1, extra=1,
        differences=(one, extra), not_compared=(HOSTILE,),
    )  # fmt: skip
    document = render(diff, **{"pipeline": HOSTILE, HOSTILE: HOSTILE})
    assert "script" not in document.tags
    assert not any(name.startswith("on") for name, _ in document.attributes)
    assert "\x1b" not in document.text and "\u202e" not in document.text


def test_report_needs_nothing_from_elsewhere():
    page = render_report([make_diff()], {})
    document = Document(page)
    assert {"script", "link", "img", "iframe"}.isdisjoint(document.tags)
    assert [value for name, value in document.attributes if name in {"src", "href"}] == ["#lane-1"]
    assert "url(" not in page and "@import" not in page


def test_report_fits_both_schemes_and_small_windows():
    page = render_report([make_diff()], {})
    assert "prefers-color-scheme:dark" in page and "max-width:40rem" in page and "name=viewport" in page


def test_row_with_many_columns_is_cut():
    one = RowDifference("different", {"id": 1}, {f"c{n}": ("x", "y") for n in range(DOCUMENT_COLUMNS + 1)})
    document = render(make_diff(different=1, differences=(one,)))
    assert "and 1 more column" in document.text and document.tags.count("mark") == 2 * DOCUMENT_COLUMNS
