"""Dead letters stored before a mask was configured: a retry stores and applies them masked."""

from __future__ import annotations

import hashlib
import hmac
import shutil
from pathlib import Path

from support.dead_letter_project import POISON, ask, caught_up, configure, feed, row, rows

KEY = "only-for-these-tests-0123456789"


def add_mask(kind: str) -> str:
    """In the place of the column's type: one with a mask."""
    return f"{kind}}}\n    columns: {{price: {{mask: hmac, key: {KEY}}}"


def rejected(folder: Path) -> None:
    """A letter with a value in clear."""
    configure(folder)
    feed(folder, row(0, 1, 10), row(1, 2, POISON))
    caught_up(folder)
    [letter] = ask(folder, "dlq", "list")["result"]
    assert POISON in letter["record"]


def test_record_rejected_again_is_stored_masked(tmp_path: Path) -> None:
    rejected(tmp_path)
    configure(tmp_path, price=add_mask("int64"))
    before = ask(tmp_path, "dlq", "list")["result"]
    ask(tmp_path, "dlq", "replay", code=1)
    [letter] = ask(tmp_path, "dlq", "list")["result"]
    assert letter["attempts"] == before[0]["attempts"] + 1
    assert POISON not in str(letter)


def test_retried_record_is_applied_masked(tmp_path: Path) -> None:
    rejected(tmp_path)
    configure(tmp_path, price=add_mask("string"))
    shutil.rmtree(tmp_path / "lake")  # A target whose column is a number takes no text.
    ask(tmp_path, "dlq", "replay")
    [found] = [price for number, price, _ in rows(tmp_path) if number == 2]
    assert found == hmac.new(KEY.encode(), POISON.encode(), hashlib.sha256).hexdigest()
