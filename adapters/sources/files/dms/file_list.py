"""The files of DMS in their order."""

from __future__ import annotations

from replicator.domain.errors import ConfigProblem

from ..file_list import ArchiveFile, Place, find_files
from ..stable_files import refuse_name
from .file_names import ENDINGS, find_table, parse_name


def list_files(path: Place, endings: tuple[str, ...]) -> list[ArchiveFile]:
    """See `FileFormat.files`: a table's full load before its changes, both in the order of their names.

    Raises ConfigProblem for a file with an unknown name, a DMS file with none of `endings`, and two files with one name of
    a table.
    """
    found = sorted(find_files(path, ENDINGS, deep=True), key=lambda f: (parse_name(f.path).first, f.label))
    seen: dict[tuple[str, int], ArchiveFile] = {}
    for file in found:
        refuse_name(file, find_table)
        _refuse_ending(file, endings)
        first = parse_name(file.path).first
        other = seen.setdefault((find_table(file.path), first), file)
        if other is not file:
            raise ConfigProblem(
                f"{other.path} and {file.path} are of one table and one time: which comes first is not known",
                next_step="Rename one of them, or remove it where it is the same file.",
            )
    return found


def _refuse_ending(file: ArchiveFile, endings: tuple[str, ...]) -> None:
    """Raise ConfigProblem for a file in another format."""
    if not file.name.endswith(endings):
        raise ConfigProblem(
            f"{file.path} is not in the source's format, whose files end with {', '.join(endings)}",
            next_step="Correct `format` of the source: dms_csv or dms_parquet; or move the file to another place.",
        )
