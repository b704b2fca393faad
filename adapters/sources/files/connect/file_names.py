"""File names of Connect's sinks."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from replicator.domain.errors import ConfigProblem
from replicator.domain.position import TopicPartition

from ..file_format import AVRO
from ..file_list import FilePath

PARQUET = ".parquet"
SUFFIXES = (".json", ".json.gz", ".bin", ".bin.gz", AVRO, PARQUET)
OTHERS = (".keys.parquet", ".headers.parquet", ".snappy", ".zip")
"""Endings of sink files that cannot be read."""
RAW = (".bin", ".bin.gz")
"""Endings of files whose lines are messages as they were."""
_NAME = re.compile(
    r"(?P<stem>(?P<topic>[A-Za-z0-9._-]+)\+(?P<partition>[0-9]{1,10})\+(?P<offset>[0-9]{1,19})(?:\+[0-9]{1,19})?)"
    r"(?:\.(?P<part>keys|headers))?"
    r"(?:(?:\.json|\.bin)(?:\.gz)?|\.avro|(?:\.(?:snappy|gz|zstd|lz4|lz4raw|lzo|br))?\.parquet)"
)
"""Sinks to HDFS also include the last offset in the name."""
_OF_AIVEN = re.compile(r"[A-Za-z0-9._-]+-[0-9]+-[0-9]+(?:\.(?:gz|snappy|zst))?")
_OF_STRINGS = re.compile(r"[A-Za-z0-9._-]+(?:\+[0-9]+){3}\.txt")
_OF_LENSES = re.compile(r"[0-9]+_[0-9]+_[0-9]+\D.*|.+\([0-9]+_[0-9]+\).*")
_OF_CLOUDERA = re.compile(r".+_[0-9]+_[0-9]+\.[a-z.]+")
_FOREIGN = (
    (_OF_AIVEN, "Aiven's sinks name files, in which fields of a record lie around the value"),
    (_OF_STRINGS, "sinks to HDFS name files of StringFormat, which is not read"),
    (_OF_LENSES, "Lenses' sinks name files: by the last offset, and not by the first"),
    (_OF_CLOUDERA, "Cloudera's sinks name files: by the last offset, and not by the first"),
)
"""File names of other sinks, which are not supported."""
LISTED = 2**17
"""Cached names: folders are listed again and again."""


class SinkFileName(NamedTuple):
    """A parsed file name: the partition, the first offset, and the kind of content (None for values). `stem`: the common
    part of files with the same records."""

    place: TopicPartition
    first: int
    part: str | None
    stem: str


@lru_cache(LISTED)
def parse_name(path: FilePath) -> SinkFileName:
    """The parsed name of the file at `path`. Raises ConfigProblem for an unknown name."""
    found = _NAME.fullmatch(path.name)
    if path.name.endswith(OTHERS) or (found and found["part"] and path.name.endswith(PARQUET)):
        raise ConfigProblem(
            f"{path} has an unsupported format. Values can be JSON, lines of messages, Avro or Parquet. Keys and headers "
            "can be JSON, lines or Avro",
            next_step="Let the connector write AvroFormat or JsonFormat, as `keys.format.class` and "
            "`headers.format.class` too, in another folder.",
        )
    if found is None or int(found["partition"]) >= 2**31 or int(found["offset"]) >= 2**62:
        whose = next((f"it is named as {whose}" for names, whose in _FOREIGN if names.fullmatch(path.name)), None)
        raise ConfigProblem(
            f"{path} is no file of a sink that can be read: {whose or 'its name is not like orders+0+0000000042.json'}",
            next_step="Move it to another place. Confluent's and Alibaba's sinks write files that are read; leave their "
            "`file.delim` at +.",
        )
    place = TopicPartition(found["topic"], int(found["partition"]))
    return SinkFileName(place, int(found["offset"]), found["part"], found["stem"])


def is_sink_file(name: str) -> bool:
    """True for file names that must be checked; other files are skipped."""
    return name.endswith((*SUFFIXES, *OTHERS)) or any(names.fullmatch(name) for names in (_OF_AIVEN, _OF_STRINGS))


def to_partition(path: FilePath) -> TopicPartition:
    """The partition of the file's records."""
    return parse_name(path).place


def first_offset(path: FilePath) -> int:
    """The offset of the first record."""
    return parse_name(path).first


def max_records(_: FilePath) -> int:
    """The lowest possible number of records: the name does not contain it."""
    return 1
