"""Names as folders and columns: reversible, distinct, never outside of the lake."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from adapters.delta.folders import LocalFolder
from adapters.delta.lake import LONGEST, Lake, decode_name, encode_name, is_hashed
from adapters.delta.tables import create_table, source_name, stored_name
from replicator.domain.errors import ConfigProblem, Fatal
from replicator.domain.table import Column

HOSTILE = ["..", ".", "../up", "a/b", "a\\b", "%2e%2e", "a b", "_replicator", ".hidden", 'x"; DROP', "\0", "é", "a_x0041_"]
texts = st.text(st.characters(codec="utf-8"), min_size=1, max_size=60)


@given(texts)
@example("a_x0041é")
@example("_x0041_")
@example("x_x004_")
def test_folder_names_are_reversible_and_plain(name: str) -> None:
    folder = encode_name(name)
    assert len(folder.encode()) <= LONGEST
    assert set(folder) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-")
    assert not folder.startswith(".")
    assert is_hashed(folder) or decode_name(folder) == name


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_stay_directly_under_the_root(name: str, tmp_path: Path) -> None:
    lake = Lake.from_path(str(tmp_path))
    assert lake.table(name).resolve().parent == tmp_path.resolve()
    for folder in (lake.positions(name, name), lake.tombstones(name), lake.schemas(name)):
        assert folder.resolve().is_relative_to(tmp_path.resolve() / "_replicator")


def test_long_names_stay_distinct() -> None:
    names = ["t" * 300 + end for end in ("a", "b")] + ["é" * 250]
    folders = {encode_name(name) for name in names}
    assert len(folders) == len(names)
    assert all(len(folder) <= LONGEST and is_hashed(folder) for folder in folders)


def test_name_that_looks_like_a_hashed_one_is_encoded() -> None:
    hashed = encode_name("t" * 300)
    assert encode_name(hashed) != hashed


def test_empty_name_is_refused() -> None:
    with pytest.raises(ConfigProblem):
        encode_name("")


@given(texts)
@example("a_x0020_b")
@example("_x0020_")
def test_column_names_are_reversible(name: str) -> None:
    stored = stored_name(name)
    assert not set(stored) & set(" ,;{}()\n\t=")
    assert source_name(stored) == name


def test_plain_column_names_stay() -> None:
    assert [stored_name(n) for n in ("id", "_x", "UPPER", 'a"b', "é", "a.b")] == ["id", "_x", "UPPER", 'a"b', "é", "a.b"]


def test_link_out_of_the_lake_is_refused(tmp_path: Path) -> None:
    (tmp_path / "lake").mkdir()
    (tmp_path / "lake" / "t").symlink_to(tmp_path)
    with pytest.raises(Fatal, match="leaves the lake"):
        Lake.from_path(str(tmp_path / "lake")).table("t")


def test_names_that_differ_in_case_only_are_refused(tmp_path: Path) -> None:
    (tmp_path / "Customers" / "_delta_log").mkdir(parents=True)
    with pytest.raises(Fatal, match="differ in case only"):
        Lake.from_path(str(tmp_path)).refuse_collision("customers")
    Lake.from_path(str(tmp_path)).refuse_collision("Customers")


@pytest.mark.parametrize("path", ["gs://bucket/lake", "abfss://x@y/z", "file://server/share"])
def test_other_locations_are_refused(path: str) -> None:
    with pytest.raises(ConfigProblem, match=r"not yet supported|cannot be reached yet"):
        Lake.from_path(path)


def test_file_urls_are_local(tmp_path: Path) -> None:
    assert Lake.from_path(f"file://{tmp_path}/my%20lake").root == tmp_path / "my lake"


def test_column_name_with_nul_is_refused_before_the_table_is_created(tmp_path: Path) -> None:
    columns = (Column("id", pa.int64()), Column("n\0ul", pa.string()))
    with pytest.raises(Fatal, match=r"n\\x00ul.*NUL character.*Rename the column"):
        create_table(LocalFolder(tmp_path) / "t", "t", columns, settings={}, partition_by=[])
    assert not (tmp_path / "t").exists()
