"""The secret of private keys: one for all that ask at once, and no other in its place."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.full_disk import full_disk

from replicator.application.key_file import KeyFile
from replicator.domain.errors import EnvironmentProblem
from replicator.domain.key_hashes import PLAIN, KeyHashes


def test_all_that_ask_have_the_same(tmp_path: Path) -> None:
    path = tmp_path / "state" / "keys.secret"
    with ThreadPoolExecutor(8) as pool:
        found = {one.secret for one in pool.map(lambda _: KeyFile(path).hashes(), range(16))}
    assert found == {bytes.fromhex(path.read_text())} and [*path.parent.iterdir()] == [path]


@pytest.mark.parametrize("text", ["", "ab", "xyz"])
def test_a_secret_that_is_none(tmp_path: Path, text: str) -> None:
    path = tmp_path / "keys.secret"
    path.write_text(text)
    with pytest.raises(EnvironmentProblem, match="cannot be read"):
        KeyFile(path).hashes()


def test_no_secret_is_left_half_written(tmp_path: Path) -> None:
    path = tmp_path / "state" / "keys.secret"
    with full_disk(8), pytest.raises(EnvironmentProblem, match=rf"{path.parent} cannot be written \(File too large\)"):
        KeyFile(path).hashes()
    assert [*path.parent.iterdir()] == [] and KeyFile(path).hashes()


def test_hashes_under_a_secret() -> None:
    """Differ from plain ones, which become them; those under another secret are told apart."""
    one, other = KeyHashes(b"1" * 32), KeyHashes(b"2" * 32)
    told = one.of(b"key")
    assert len({told, other.of(b"key"), PLAIN.of(b"key"), one.of(b"kez")}) == 4
    assert one.renewed(PLAIN.of(b"key"), b"key") == told and one.renewed(told, b"masked") == told
    assert PLAIN.renewed(PLAIN.of(b"key"), b"key") == PLAIN.of(b"key")
    assert one.is_of(told) and PLAIN.is_of(PLAIN.of(b"key")) and one.of(None) == ""
    assert not other.is_of(told) and not PLAIN.is_of(told) and not other.is_of(PLAIN.of(b"key"))
    assert "1111" not in repr(one)
