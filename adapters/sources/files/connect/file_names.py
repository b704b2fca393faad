"""What the names of files say."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from replicator.domain.errors import ConfigProblem
from replicator.domain.position import TopicPartition

from ..avro_files import AVRO
from ..file_list import FilePath

PARQUET = ".parquet"
SUFFIXES = (".json", ".json.gz", ".bin", ".bin.gz", AVRO, PARQUET)
OTHERS = (".keys.parquet", ".headers.parquet", ".snappy", ".zip")
"""Of files that sinks write too, and that cannot be read."""
RAW = (".bin", ".bin.gz")
"""Of files whose lines are messages as they were."""
_NAME = re.compile(
    r"(?P<stem>(?P<topic>[A-Za-z0-9._-]+)\+(?P<partition>[0-9]{1,10})\+(?P<offset>[0-9]{1,19})(?:\+[0-9]{1,19})?)"
    r"(?:\.(?P<part>keys|headers))?"
    r"(?:(?:\.json|\.bin)(?:\.gz)?|\.avro|(?:\.(?:snappy|gz|zstd|lz4|lz4raw|lzo|br))?\.parquet)"
)
"""Sinks to HDFS name the last offset as well."""
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
"""Names of files that are not read, and whose they are."""
LISTED = 2**17
"""Names that are kept: folders are listed again and again."""


class SinkFileName(NamedTuple):
    """What a file is by its name: records of a partition from an offset on, and what of them it holds, None for values.
    `stem`: what files of the same records have in common."""

    place: TopicPartition
    first: int
    part: str | None
    stem: str


@lru_cache(LISTED)
def parse_name(path: FilePath) -> SinkFileName:
    """What the file at `path` is; ConfigProblem when its name says nothing that is known."""
    found = _NAME.fullmatch(path.name)
    if path.name.endswith(OTHERS) or (found and found["part"] and path.name.endswith(PARQUET)):
        raise ConfigProblem(
            f"{path} is in a format that is not read: values are read as JSON, lines of messages, Avro or Parquet, and keys "
            "and headers as JSON, lines or Avro",
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
    """Whether a file of that name is to be looked at: others are passed over."""
    return name.endswith((*SUFFIXES, *OTHERS)) or any(names.fullmatch(name) for names in (_OF_AIVEN, _OF_STRINGS))


def to_partition(path: FilePath) -> TopicPartition:
    """The partition whose records the file holds."""
    return parse_name(path).place


def first_offset(path: FilePath) -> int:
    """The offset of its first record."""
    return parse_name(path).first


def max_records(_: FilePath) -> int:
    """How many records it holds at least: its name does not say it."""
    return 1
