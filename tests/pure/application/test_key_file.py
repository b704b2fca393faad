"""The secret for hashes of private keys: one for all concurrent callers, and never overwritten."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.full_disk import full_disk

from replicator.application.quarantine.rejects import KeyFile
from replicator.domain.erasures import UNKEYED_HASHES, KeyHashes
from replicator.domain.errors import EnvironmentProblem


def test_concurrent_callers_get_the_same_secret(tmp_path: Path) -> None:
    path = tmp_path / "state" / "keys.secret"
    with ThreadPoolExecutor(8) as pool:
        found = {one.secret for one in pool.map(lambda _: KeyFile(path).load_hashes(), range(16))}
    assert found == {bytes.fromhex(path.read_text())} and [*path.parent.iterdir()] == [path]


@pytest.mark.parametrize("text", ["", "ab", "xyz"])
def test_invalid_secret_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "keys.secret"
    path.write_text(text)
    with pytest.raises(EnvironmentProblem, match="cannot be read"):
        KeyFile(path).load_hashes()


def test_full_disk_leaves_no_partial_secret(tmp_path: Path) -> None:
    path = tmp_path / "state" / "keys.secret"
    with full_disk(8), pytest.raises(EnvironmentProblem, match=rf"{path.parent} cannot be written \(File too large\)"):
        KeyFile(path).load_hashes()
    assert [*path.parent.iterdir()] == [] and KeyFile(path).load_hashes()


def test_hashes_with_a_secret() -> None:
    """They differ from plain hashes, which can be converted, and from hashes with another secret."""
    one, other = KeyHashes(b"1" * 32), KeyHashes(b"2" * 32)
    told = one.hash_key(b"key")
    assert len({told, other.hash_key(b"key"), UNKEYED_HASHES.hash_key(b"key"), one.hash_key(b"kez")}) == 4
    assert one.renew_hash(UNKEYED_HASHES.hash_key(b"key"), b"key") == told and one.renew_hash(told, b"masked") == told
    assert UNKEYED_HASHES.renew_hash(UNKEYED_HASHES.hash_key(b"key"), b"key") == UNKEYED_HASHES.hash_key(b"key")
    assert (
        one.is_comparable(told)
        and UNKEYED_HASHES.is_comparable(UNKEYED_HASHES.hash_key(b"key"))
        and one.hash_key(None) == ""
    )
    assert (
        not other.is_comparable(told)
        and not UNKEYED_HASHES.is_comparable(told)
        and not other.is_comparable(UNKEYED_HASHES.hash_key(b"key"))
    )
    assert "1111" not in repr(one)
