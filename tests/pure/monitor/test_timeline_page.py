"""The timeline page of a row shows any text as text."""

from adapters.http.read_side import render_timeline
from replicator.domain.timeline import HistoryEntry
from replicator.ports.reads import ReadTarget, RowHistory

SCRIPT = "<script>document.title='taken'</script>"


def test_texts_are_escaped():
    row, place = {"id": 1, SCRIPT: SCRIPT}, (SCRIPT, 0, 7, SCRIPT)
    created = HistoryEntry("c", None, (1,), *place, None, row, ())
    updated = HistoryEntry("u", None, (2,), *place, row, {**row, SCRIPT: None}, (SCRIPT,))
    target = ReadTarget(SCRIPT, (SCRIPT,), "scd1", SCRIPT, True)
    found = RowHistory(target, [created, updated], 1, (SCRIPT,))
    page = render_timeline(found, [SCRIPT], found.entries[::-1], f"/{SCRIPT}", f"/{SCRIPT}")
    assert "<script" not in page
    assert page.count("&lt;script&gt;document.title=&#x27;taken&#x27;&lt;/script&gt;") > 10
