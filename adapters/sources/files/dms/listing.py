"""The files of DMS in their order."""

from __future__ import annotations

from replicator.domain.errors import ConfigProblem

from ..listing import ArchiveFile, Place, found_files
from ..once.settled import refuse_name
from .names import ENDINGS, named, table_of


def listed(path: Place, endings: tuple[str, ...]) -> list[ArchiveFile]:
    """See `Form.files`: a table's full load before its changes, both in the order of their names. ConfigProblem for a file
    whose name says neither, for one of DMS's that has none of `endings`, and for two of a table with one name."""
    found = sorted(found_files(path, ENDINGS, deep=True), key=lambda f: (named(f.path).first, f.label))
    seen: dict[tuple[str, int], ArchiveFile] = {}
    for file in found:
        refuse_name(file, table_of)
        _refuse_ending(file, endings)
        first = named(file.path).first
        other = seen.setdefault((table_of(file.path), first), file)
        if other is not file:
            raise ConfigProblem(
                f"{other.path} and {file.path} are of one table and one time: which comes first is not known",
                next_step="Rename one of them, or remove it where it is the same file.",
            )
    return found


def _refuse_ending(file: ArchiveFile, endings: tuple[str, ...]) -> None:
    """Raise ConfigProblem for a file that is written in another way."""
    if not file.name.endswith(endings):
        raise ConfigProblem(
            f"{file.path} is not in the source's format, whose files end with {', '.join(endings)}",
            next_step="Correct `format` of the source: dms_csv or dms_parquet; or move the file to another place.",
        )
