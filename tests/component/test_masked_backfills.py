"""Backfill of a table with private columns: neither stored records nor targets contain their values, and the targets
equal the table."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any

import pytest
from support.backfilled_table import COLUMNS, LANES, BackfilledTable, Writer
from support.loaded_items import TABLE, MariaDbItems

from adapters.decoders.debezium_json import DebeziumJsonDecoder
from adapters.sources.backfill.journal import BackfillFolder
from replicator.domain.transform.columns import Mask

pytestmark = [pytest.mark.postgres, pytest.mark.timeout(300)]

KEY = b"0123456789abcdef"
OF_VALUE = {"note": Mask("hmac", KEY), "turn": Mask("nothing")}
OF_KEY = {"id": Mask("hmac", KEY), "note": Mask("truncate", KEY, 2)}
SECRETS = (b"as it was", b"changed", b"again", b"unseen")


class Masked(BackfilledTable):
    """The table and its pipeline, with private columns."""

    masks: dict[str, Mask]

    def decoder(self) -> Any:
        return DebeziumJsonDecoder({"private": {TABLE: self.masks}})

    def reading(self) -> Any:
        masking = {"private": self.decoder(), "masked": tuple(self.masks), "masks": repr(sorted(self.masks))}
        return self.items.backfill(state=str(self.folder / "kept"), piece_rows=self.piece_rows, **masking)

    def table(self) -> dict[Any, tuple[Any, ...]]:
        rows = [tuple(map(self._read_masked, COLUMNS, row)) for row in super().table().values()]
        return {row[0]: row for row in rows}

    def _read_masked(self, name: str, value: Any) -> Any:
        mask, text = self.masks.get(name), str(value)
        if mask is None or value is None:
            return value
        digest = hmac.new(KEY, text.encode(), hashlib.sha256).hexdigest()
        return {"hmac": digest, "truncate": f"{text[:2]}-{digest[:16]}"}.get(mask.kind)


@pytest.fixture
def world(request: pytest.FixtureRequest, postgres_dsn: str, tmp_path: Path) -> Iterator[Callable[..., Masked]]:
    """A pipeline from either database."""
    with ExitStack() as made:

        def make(masks: dict[str, Mask], seed: int = 1, **more: Any) -> Masked:
            random = Random(seed)
            if request.param == "mariadb":
                more["items"] = MariaDbItems(request.getfixturevalue("mariadb_server"), random)
                made.callback(more["items"].slot.drop)
            found = Masked(postgres_dsn, tmp_path, random, **more)
            found.masks = masks
            return found

        yield make


MakeWorld = Callable[..., Masked]
PAIRS = [
    pytest.param("postgresql", OF_VALUE, id="postgresql-of values"),
    pytest.param("mariadb", OF_KEY, id="mariadb-of the key"),
    pytest.param("postgresql", OF_KEY, id="postgresql-of the key", marks=pytest.mark.long),
    pytest.param("mariadb", OF_VALUE, id="mariadb-of values", marks=pytest.mark.long),
]
"""Rows of every database are masked by the same code; how a table is read does not depend on its masks."""


def assert_private(world: Masked) -> None:
    """Checks everything that is stored. Keys are numbers, which occur everywhere, so they are not checked."""
    records = b"".join(b"%s%s" % (record["key"], record["value"]) for record in world.written_down())
    files = b"".join(path.read_bytes() for path in (world.folder / "kept").rglob("*") if path.is_file())
    assert records and not any(secret in records or secret in files for secret in SECRETS)


@pytest.mark.parametrize(("world", "masks"), PAIRS, indirect=["world"])
def test_rows_are_masked_before_they_are_stored(world: MakeWorld, masks: dict[str, Mask]) -> None:
    """The table is loaded while it changes, and loaded again after rows were deleted."""
    filled = world(masks)
    with Writer(filled.items, 3, 1):
        filled.backfill()
    filled.apply()
    filled.check()
    with filled.change_unseen():
        filled.execute("DELETE FROM items WHERE id < 20")
        filled.execute("UPDATE items SET note = 'unseen' WHERE id BETWEEN 20 AND 30")
    removed = len(filled.rows(LANES[0])) - len(filled.table())
    outcome = filled.backfill()
    assert (outcome.deleted, len(outcome.deletes_of)) == (removed, 4) and removed > 0
    filled.check()
    assert_private(filled)


@pytest.mark.parametrize(("world", "masks"), PAIRS, indirect=["world"])
def test_unfinished_backfill_resumes_unless_its_key_is_masked(
    world: MakeWorld, monkeypatch: pytest.MonkeyPatch, masks: dict[str, Mask]
) -> None:
    """Its progress would reveal a value of the key. Rows masked by other rules are not reused."""
    filled, whole, pieces, resumes = world(masks, piece_rows=9), BackfillFolder.append, 0, masks is OF_VALUE

    def append(*args: Any) -> None:
        nonlocal pieces
        pieces += 1
        if pieces == 3:
            raise KeyboardInterrupt
        whole(*args)

    monkeypatch.setattr(BackfillFolder, "append", append)
    with pytest.raises(KeyboardInterrupt):
        filled.backfill()
    assert_private(filled)
    filled.execute("DELETE FROM items WHERE id IN (2, 33)")
    monkeypatch.setattr(BackfillFolder, "append", whole)
    outcome = filled.backfill()
    assert (outcome.rows, outcome.resumed) == (39 if resumes else 38, resumes)
    filled.apply()
    filled.check()
    with pytest.raises(KeyboardInterrupt), monkeypatch.context() as again:
        again.setattr(BackfillFolder, "append", append)
        pieces = 0
        filled.backfill()
    filled.masks = {"note": Mask("hmac", KEY)} if masks is OF_VALUE else {**masks, "turn": Mask("nothing")}
    reading = filled.reading()
    assert reading.rows(lambda _: None).resumed is False
    reading.close()
