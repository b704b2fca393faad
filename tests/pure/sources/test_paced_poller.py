"""The schedule of reads of a database."""

from __future__ import annotations

from typing import Any, cast

import pytest

from adapters.sources import journal
from adapters.sources.journal import PacedPoller
from replicator.domain.errors import Retryable


class EmptyJournal:
    """A journal without rows, which counts how often it is looked at."""

    looks = 0

    @property
    def has_rows(self) -> bool:
        self.looks += 1
        return False


def test_poller_sleeps_while_another_process_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "FIRST_WITHIN", 0.5)
    empty, reads = EmptyJournal(), []

    def read() -> bool:
        reads.append(1)
        return False

    poller = PacedPoller(cast(Any, empty), read, lambda: None, every="1 minute", pending="Its rows are being read.")
    with pytest.raises(Retryable, match=r"Its rows are being read\."):
        poller.begin()
    assert (len(reads), empty.looks < 10) == (1, True)
