"""Dead letters stored before a mask was configured: a retry stores and applies them masked."""

from __future__ import annotations

import hashlib
import hmac
import shutil
from pathlib import Path

from support.dead_letter_project import (
    POISON,
    append_records,
    make_row_record,
    query_rows,
    run_command,
    run_until_caught_up,
    write_config,
)

KEY = "only-for-these-tests-0123456789"


def add_mask(kind: str) -> str:
    """The column's type with a mask appended."""
    return f"{kind}}}\n    columns: {{price: {{mask: hmac, key: {KEY}}}"


def make_dead_letter(folder: Path) -> None:
    """Stores a dead letter with an unmasked value."""
    write_config(folder)
    append_records(folder, make_row_record(0, 1, 10), make_row_record(1, 2, POISON))
    run_until_caught_up(folder)
    [letter] = run_command(folder, "dlq", "list")["result"]
    assert POISON in letter["record"]


def test_record_rejected_again_is_stored_masked(tmp_path: Path) -> None:
    make_dead_letter(tmp_path)
    write_config(tmp_path, price=add_mask("int64"))
    before = run_command(tmp_path, "dlq", "list")["result"]
    run_command(tmp_path, "dlq", "replay", code=1)
    [letter] = run_command(tmp_path, "dlq", "list")["result"]
    assert letter["attempts"] == before[0]["attempts"] + 1
    assert POISON not in str(letter)


def test_retried_record_is_applied_masked(tmp_path: Path) -> None:
    make_dead_letter(tmp_path)
    write_config(tmp_path, price=add_mask("string"))
    shutil.rmtree(tmp_path / "lake")  # A target whose column is a number takes no text.
    run_command(tmp_path, "dlq", "replay")
    [found] = [price for number, price, _ in query_rows(tmp_path) if number == 2]
    assert found == hmac.new(KEY.encode(), POISON.encode(), hashlib.sha256).hexdigest()
