"""The promises of a dead-letter store (`ports.stores`), as tests for adapters to inherit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import strategies as st

from replicator.ports.stores import ALL_DEAD_LETTERS, DeadLetter, DeadLetterFilter, DeadLetterGroup, DeadLetters

from .contract import Contract

FIRST_TIME = datetime(2024, 2, 29, 12, tzinfo=UTC)
ODD_TEXT = "a 'quoted' \"name\" \\ with %, _ and \N{GREEK SMALL LETTER OMEGA}"


def make_dead_letter(number: int, lane: str = "lake.items", minutes: int = 0) -> DeadLetter:
    """An example dead letter, last seen `minutes` after `FIRST_TIME`."""
    seen = FIRST_TIME + timedelta(minutes=minutes)
    return DeadLetter(
        event_id=f"cdc.items-0-{number}",
        lane=lane,
        stage="decode",
        code="MALFORMED",
        sentence="not JSON",
        table="public.items",
        key_hash="ab12",
        record=b"\xff\x00",
        first_seen=seen,
        last_seen=seen,
        source="shop",
        topic="cdc.items",
        partition=0,
        offset=number,
        timestamp=FIRST_TIME,
        headers='[["name", {"base64": "/w=="}]]',
        key=b"\x00key",
    )


class DeadLetterContract(Contract):
    """An adapter defines `new_place` and `new_store`."""

    def new_place(self) -> object:
        """A fresh, empty location for a store."""
        raise NotImplementedError

    def new_store(self, place: object) -> DeadLetters:
        """Another store at that location."""
        raise NotImplementedError

    @contextmanager
    def stores(self) -> Iterator[tuple[DeadLetters, DeadLetters]]:
        """Two stores at one fresh location, as in two processes."""
        place = self.new_place()
        first, second = self.new_store(place), self.new_store(place)
        try:
            yield first, second
        finally:
            first.close()
            second.close()

    def test_dead_letters_outlive_the_store(self) -> None:
        """All fields are stored, and every reader gets them newest first."""
        odd = replace(make_dead_letter(5, minutes=-2), sentence=ODD_TEXT, table=ODD_TEXT, lane=ODD_TEXT, event_id=ODD_TEXT)
        bare = replace(make_dead_letter(4, minutes=-1), record=None, key=None, headers=None, timestamp=None, key_hash="")
        letters = [make_dead_letter(1), make_dead_letter(2, minutes=2), make_dead_letter(3, "", minutes=1), bare, odd]
        with self.stores() as (store, other):
            assert list(other.read()) == []
            store.write(letters)
            store.write([])
            store.close()
            store.close()
            assert list(other.read()) == [letters[1], letters[2], letters[0], bare, odd]
            assert list(other.read(limit=1)) == [letters[1]]
            assert list(other.read(limit=0)) == []

    def test_the_same_dead_letter_is_one(self) -> None:
        """`first_seen` stays, `last_seen` never goes back, attempts add up, also within one call. The last reason
        counts."""
        with self.stores() as (store, other):
            store.write([make_dead_letter(1), make_dead_letter(1, "other.items"), make_dead_letter(2)])
            store.write([make_dead_letter(1, minutes=5), make_dead_letter(1, minutes=6)])
            other.write([replace(make_dead_letter(1, minutes=3), code="OUT_OF_RANGE", record=b"new")])
            found = {(each.event_id, each.lane): each for each in store.read()}
            assert len(found) == 3
            seen = found["cdc.items-0-1", "lake.items"]
            assert (seen.first_seen, seen.last_seen, seen.attempts) == (FIRST_TIME, FIRST_TIME + timedelta(minutes=6), 4)
            assert (seen.code, seen.record) == ("OUT_OF_RANGE", b"new")
            assert found["cdc.items-0-2", "lake.items"].attempts == 1

    def test_dead_letters_are_filtered(self) -> None:
        """By every field of `DeadLetterFilter`. The filter applies before the limit."""
        late = replace(make_dead_letter(2, "", minutes=9), stage="route", code="NULL_KEY", table="public.orders")
        letters = [make_dead_letter(1), late, make_dead_letter(3, "mirror.items", minutes=1)]
        with self.stores() as (store, _):
            store.write(letters)
            store.mark([letters[2]], "replayed")
            letters[2] = replace(letters[2], state="replayed")
            for which in (
                ALL_DEAD_LETTERS,
                DeadLetterFilter(events=frozenset({"cdc.items-0-1", "cdc.items-0-3"})),
                DeadLetterFilter(lane="*.items"),
                DeadLetterFilter(lane=""),
                DeadLetterFilter(table="public.ord?rs"),
                DeadLetterFilter(table="public_orders"),
                DeadLetterFilter(code="NULL_KEY"),
                DeadLetterFilter(stage="route"),
                DeadLetterFilter(state="open"),
                DeadLetterFilter(before=FIRST_TIME + timedelta(minutes=1)),
                DeadLetterFilter(lane="lake.*", code="NULL_KEY"),
            ):
                due = [each for each in (letters[1], letters[2], letters[0]) if which.is_match(each)]
                assert list(store.read(which)) == due, which
                assert list(store.read(which, limit=1)) == due[:1], which

    def test_open_dead_letters_are_counted(self) -> None:
        """By source, table and lane. A repeated one counts once; replayed and removed ones do not count."""
        of_table, of_lane = (
            DeadLetterGroup("shop", "public.items", ""),
            DeadLetterGroup("shop", "public.items", "lake.items"),
        )
        unknown = DeadLetterGroup("shop", "", "")
        with self.stores() as (store, other):
            assert dict(store.count_open()) == {}
            store.write(
                [
                    make_dead_letter(1),
                    make_dead_letter(1),
                    make_dead_letter(2, ""),
                    make_dead_letter(3, ""),
                    replace(make_dead_letter(4, ""), table=""),
                ]
            )
            store.write([make_dead_letter(2, "", minutes=1)])
            assert dict(other.count_open()) == {of_table: 2, of_lane: 1, unknown: 1}
            read = {each.offset: each for each in store.read()}
            store.mark([read[2]], "replayed")
            store.remove([read[4]])
            assert dict(other.count_open()) == {of_table: 1, of_lane: 1}

    def test_a_repeated_dead_letter_is_not_marked(self) -> None:
        """A dead letter that was rejected again after the read stays open."""
        with self.stores() as (store, other):
            store.write([make_dead_letter(1), make_dead_letter(2), make_dead_letter(1, "other.items")])
            read = list(other.read())
            store.write([make_dead_letter(1, minutes=1)])
            other.mark(read, "replayed")
            other.mark([], "replayed")
            found = {(each.offset, each.lane): each.state for each in store.read()}
            assert found == {(1, "lake.items"): "open", (2, "lake.items"): "replayed", (1, "other.items"): "replayed"}
            store.write([make_dead_letter(2, minutes=2)])
            assert {each.state for each in other.read(DeadLetterFilter(events=frozenset({"cdc.items-0-2"})))} == {"open"}

    @pytest.mark.parametrize("change", ["mark", "remove"])
    def test_a_store_changes_what_another_one_wrote(self, change: str) -> None:
        """Also if it wrote before, and knows none of the other's dead letters from that."""
        with self.stores() as (store, other):
            store.write([make_dead_letter(1)])
            other.write([make_dead_letter(1, minutes=1), make_dead_letter(2)])
            read = list(store.read())
            other.write([make_dead_letter(1, minutes=2)])
            if change == "mark":
                store.mark(read, "replayed")
            else:
                store.remove(read)
            left = [each.offset for each in other.read(DeadLetterFilter(state="open"))]
            assert left == [1]

    def test_dead_letters_are_removed(self) -> None:
        """A removed dead letter that returns is new. A dead letter that was rejected again after the read stays."""
        with self.stores() as (store, other):
            store.write([make_dead_letter(1), make_dead_letter(2), make_dead_letter(3)])
            read = list(store.read())
            other.write([make_dead_letter(2, minutes=1)])
            store.remove(read)
            store.remove(read)
            store.remove([])
            assert [(each.offset, each.attempts) for each in other.read()] == [(2, 2)]
            other.write([make_dead_letter(3, minutes=7)])
            (back, _) = store.read()
            assert back == make_dead_letter(3, minutes=7)

    def test_any_history_ends_as_a_list_would(self) -> None:
        """Random writes, marks and removals of earlier reads, by two stores in turns."""
        steps = st.lists(
            st.tuples(st.sampled_from(["write", "mark", "remove", "read"]), st.sets(st.integers(0, 3), min_size=1)),
            max_size=8,
        )

        @self.for_all(steps=steps)
        def check(steps: list[tuple[str, set[int]]]) -> None:
            from .fakes import FakeDeadLetters  # noqa: PLC0415

            plain = FakeDeadLetters()
            seen: list[DeadLetter] = []
            with self.stores() as stores:
                for minute, (step, numbers) in enumerate(steps):
                    store = stores[minute % 2]
                    chosen = [each for each in seen if each.offset in numbers]
                    if step == "write":
                        new = [make_dead_letter(number, minutes=minute) for number in sorted(numbers)]
                        store.write(new)
                        plain.write(new)
                    elif step == "mark":
                        store.mark(chosen, "replayed")
                        plain.mark(chosen, "replayed")
                    elif step == "remove":
                        store.remove(chosen)
                        plain.remove(chosen)
                    else:
                        seen = list(store.read())
                    assert list(store.read()) == list(plain.read())
