"""Files of sinks in their order, each with its files of keys and headers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

from replicator.domain.errors import ConfigProblem
from replicator.domain.position import TopicPartition

from ..file_list import ArchiveFile, Place, find_files
from ..stable_files import SETTLED_SECONDS, seconds_until_complete
from .file_names import is_sink_file, parse_name

PARTS = ("keys", "headers")


@dataclass(frozen=True, slots=True)
class SinkFile(ArchiveFile):
    """A file of values. `keys`, `headers`: the files with keys and headers of its records, line by line. `lacks`: the
    kind of file that is missing here, but present for earlier files of the partition. `following`: the next file in the
    partition.

    Comparisons include all fields: a file is read again when another one follows it, and may then start too early.
    """

    keys: ArchiveFile | None = None
    headers: ArchiveFile | None = None
    lacks: str | None = None
    following: ArchiveFile | None = None


def list_sink_files(path: Place, settle: float) -> list[ArchiveFile]:
    """The files of values, by partition and offset.

    Raises ConfigProblem for a file of another kind, and for two files with the same first record. Also raises it for keys
    or headers that have no values `settle` seconds after they were written.
    """
    found = [f for f in find_files(path, ("",), deep=True) if is_sink_file(f.name) and not f.name.startswith((".", "_"))]
    beside = {(_record_key(file), part): file for file in found if (part := parse_name(file.path).part) is not None}
    values = [file for file in found if parse_name(file.path).part is None]
    values.sort(key=lambda file: (parse_name(file.path).place, parse_name(file.path).first, file.label))
    lonely = beside.keys() - {(_record_key(f), part) for f in values for part in PARTS}
    _refuse_unmatched((beside[which] for which in lonely), settle)
    for one, other in pairwise(values):
        if parse_name(one.path)[:2] == parse_name(other.path)[:2]:
            raise ConfigProblem(
                f"{one.path} and {other.path} begin with the same record", next_step="Remove the one that is a copy."
            )
    return list(_add_parts(values, beside))


def _add_parts(values: list[ArchiveFile], beside: dict[tuple[str, str], ArchiveFile]) -> Iterator[SinkFile]:
    known: set[tuple[TopicPartition, str]] = set()
    for file, following in zip(values, [*values[1:], None], strict=False):
        place = parse_name(file.path).place
        parts = {part: beside[_record_key(file), part] for part in PARTS if (_record_key(file), part) in beside}
        known |= {(place, part) for part in parts}
        lacks = next((part for part in PARTS if (place, part) in known and part not in parts), None)
        after = following if following is not None and parse_name(following.path).place == place else None
        # An executor has a working folder of its own.
        absolute = {part: replace(one, path=one.path.absolute()) for part, one in parts.items()}
        yield SinkFile(
            *(file.name, file.path, file.label, file.size, file.stamp, file.changed),
            keys=absolute.get("keys"),
            headers=absolute.get("headers"),
            lacks=lacks,
            following=after,
        )


def _record_key(file: ArchiveFile) -> str:
    """Identifies the records of a file: its folder, and its name without the kind of content."""
    return file.label.removesuffix(file.name) + parse_name(file.path).stem


def _refuse_unmatched(files: Iterable[ArchiveFile], settle: float) -> None:
    """Raise ConfigProblem for files without values. Recent files are allowed, because listing and copying take time."""
    for file in files:
        if seconds_until_complete(file, max(settle, SETTLED_SECONDS), since_copied=True) <= 0:
            raise ConfigProblem(
                f"{file.path} has keys or headers of records without values, whose position among other records is unknown",
                next_step="If there is a file of their values, copy it there too. Otherwise let the connector ignore such "
                "records (`behavior.on.null.values: ignore`), and remove its files.",
            )
