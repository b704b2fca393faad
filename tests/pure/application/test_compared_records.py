"""Records of a comparison: the errors of tables that cannot be decoded."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from replicator.application.catalog import Catalog, UnusableTable
from replicator.application.operations.diff_records import TableRecords
from replicator.domain.errors import ConfigProblem, Fatal


@pytest.mark.parametrize(
    ("cause", "sentence"),
    [
        (ValueError("two columns are named id"), "two columns are named id"),
        (ConfigProblem("a key is unknown"), "a key is un"),
    ],
)
def test_table_that_cannot_be_replicated_is_an_error_with_a_sentence(monkeypatch, cause, sentence):
    def refuse(*_: Any) -> None:
        raise UnusableTable(cause)

    monkeypatch.setattr(Catalog, "learn_schema", refuse)
    routed = SimpleNamespace(slices=[SimpleNamespace(table="public.orders")])
    components: Any = SimpleNamespace(
        build_decoder=lambda _: None,
        build_engine=lambda: SimpleNamespace(frames=None, route=lambda *_: routed),
        sources={"shop": SimpleNamespace(rules_for=None)},
    )
    lane: Any = SimpleNamespace(table="public.orders", source="shop")
    with pytest.raises(Fatal, match=sentence):
        list(TableRecords(components, lane).read_keys([]))
