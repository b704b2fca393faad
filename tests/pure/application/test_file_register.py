"""The register in a file."""

from __future__ import annotations

import pytest

from replicator.application.state_folder import FileRegister
from replicator.domain.errors import EnvironmentProblem
from replicator.domain.position import Position, TopicPartition
from replicator.domain.transactions import Connector
from replicator.ports.stores import RegisterEntry

SEEN = RegisterEntry(
    {"public.items": frozenset({"t", "ü/.."})},
    {"a.items": Position({TopicPartition("t", 3): 7}), "raw.s": Position()},
    {"public.items": ("id", "at")},
    Position({TopicPartition("t", 3): 5}),
    (Connector("postgresql", "3.5.0.Final", has_metadata=True, prefix="shop"), Connector("mysql", "3.7.0.Final")),
)


def test_register_is_read_back_unchanged(tmp_path):
    register = FileRegister(tmp_path / "state")
    assert register.load("../shop") == RegisterEntry()
    register.save("../shop", SEEN)
    assert FileRegister(tmp_path / "state").load("../shop") == SEEN
    assert register.load("other") == RegisterEntry()
    assert [p.name for p in (tmp_path / "state").iterdir()] == ["..%2Fshop.json"]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"topics": {}}', '{"topics": [], "beginnings": {}}'])
def test_damaged_file_is_reported(tmp_path, text):
    (tmp_path / "shop.json").write_text(text)
    with pytest.raises(EnvironmentProblem, match=r"shop\.json"):
        FileRegister(tmp_path).load("shop")


def test_folder_that_cannot_be_written_is_reported(tmp_path):
    (tmp_path / "state").write_text("a file")
    with pytest.raises(EnvironmentProblem, match="state"):
        FileRegister(tmp_path / "state").save("shop", SEEN)
