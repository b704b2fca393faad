"""`tombstones: delete` implies a compacted topic, so lanes that need every change are a warning."""

from __future__ import annotations

import pytest

LANE = "        stored_as_scd_type: 1\n"
EVERY = {
    "scd1": (LANE, ""),
    "scd2": ("        policy: scd2\n", "policy 'scd2' keeps every change"),
    "scd2 by its number": ("        stored_as_scd_type: 2\n", "policy 'scd2' keeps every change"),
    "append": ("        policy: append\n", "policy 'append' keeps every change"),
    "event log": (LANE, "the event log keeps every change"),
}


def change(folder, old, new):
    text = folder.file.read_text()
    assert text.count(old) == 1
    folder.write(text.replace(old, new))


@pytest.mark.parametrize("kind", EVERY)
def test_lane_that_needs_every_change_of_a_compacted_topic_is_a_warning(folder, kind):
    said, sentence = EVERY[kind]
    change(folder, LANE, said)
    if kind == "event log":
        change(folder, "        into: orders_now\n", "        into: orders_now\n      - sink: raw\n")
    found = [w for w in folder.load().warnings if w.code == "no_history"]
    assert len(found) == bool(sentence)
    assert all(sentence in w.message and "doctor" in str(w) and w.line for w in found)


@pytest.mark.parametrize("form", ["flattened: true", "tombstones: ignore"])
def test_other_lanes_are_no_warning(folder, form):
    """The only deletes of flattened rows may be messages without a value, in any topic."""
    change(folder, LANE, EVERY["scd2"][0])
    if form == "flattened: true":
        change(folder, "    group_id: readers\n", "    group_id: readers\n    flattened: true\n")
        change(folder, "  - match: public.*\n", "  - match: public.*\n    tombstones: delete\n")
    else:
        change(folder, "    tombstones: delete\n", "    tombstones: ignore\n")
    assert not [w for w in folder.load().warnings if w.code == "no_history"]
