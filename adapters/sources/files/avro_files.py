"""Avro files (object container files) as messages, one block in memory at a time.

A value is converted to the text that Connect's JsonConverter writes for it with its schema, which is in the file. Text
and bytes outside a struct are messages as they are: a converter of the connector passed them on.

Other modules import this one when they read such a file: only the extra `avro` installs fastavro.
"""

from __future__ import annotations

import bz2
import lzma
import zlib
from collections.abc import Callable, Iterator
from decimal import Context, Decimal
from functools import lru_cache
from typing import Any, BinaryIO

import pyarrow as pa
from fastavro import schemaless_reader
from pyarrow import types as t

from replicator.domain.errors import ConfigProblem, EnvironmentProblem

from ...arrow.record_errors import RecordLimits, ValueMisfit
from ...decoders.avro import FAULTS, NO_SCHEMA, Mend, ValueSchema, read_data, read_schema
from .file_list import BLOCK, LONGER, NULL, ArchiveFile

LONGEST_HEADER = 16 * 1024 * 1024
XZ_MEMORY = 256 * 1024 * 1024
HEADER = {
    "type": "record",
    "name": "header",
    "fields": [
        {"name": "magic", "type": {"type": "fixed", "name": "magic", "size": 4}},
        {"name": "meta", "type": {"type": "map", "values": "bytes"}},
        {"name": "sync", "type": {"type": "fixed", "name": "sync", "size": 16}},
    ],
}
MAGIC = b"Obj\x01"
PLAIN_MESSAGES: dict[str, Callable[[Any], bytes]] = {"string": str.encode, "bytes": bytes}
"""Types outside a struct whose values are messages as they are."""
STEP = "Let the connector write `format.class` JsonFormat, in another folder."


def read_messages(file: ArchiveFile, longest: int) -> Iterator[bytes]:
    """The messages of an Avro file. `longest`: see `FileFormat.longest`. Raises ConfigProblem for an unsupported file,
    EnvironmentProblem for a damaged or incomplete one."""
    most = longest // LONGER + BLOCK
    with file.path.open("rb") as stream:
        try:
            meta, sync = _read_header(stream)
            schema = _find_schema(file, meta.get("avro.schema", b""))
            codec = meta.get("avro.codec", b"null").decode("ascii", "replace")
            if codec not in CODECS:
                raise ConfigProblem(
                    f"{file.path} is packed with codec {codec[:20]!r}, which is not read",
                    next_step=f"Let the connector write `avro.codec` {', '.join(CODECS)}, in another folder.",
                )
            plain = "" if "name" in schema.connect else schema.connect["type"]
            to_message = PLAIN_MESSAGES.get(plain, schema.to_text)
            while stream.tell() < file.size:
                count, block = _read_block(stream, sync, most, CODECS[codec])
                for value in read_data(block, count, schema.avro, schema.columns):
                    yield NULL if value is None else to_message(value)
        except _FileTruncated:
            raise EnvironmentProblem(f"{file.path} ends too early: it was not copied to its end.") from None
        except _BlockTooLarge as problem:
            raise ConfigProblem(
                f"{file.path} has {problem}, more than {most}: limits.message_bytes plus {BLOCK} for other records",
                next_step="Raise `limits.message_bytes` of the source, if the file comes from the connector.",
            ) from None
        except ValueMisfit as unfit:
            raise ConfigProblem(f"A record of {file.path} cannot be read: {unfit}", next_step=STEP) from None
        except FAULTS as error:
            where = f"before byte {stream.tell()} it is no Avro"
            raise EnvironmentProblem(f"The file {file.path} is damaged: {where} ({error}).") from error


@lru_cache(64)
def read_cached_schema(text: bytes) -> ValueSchema:
    """The value schema of the schema in a file. Raises one of NO_SCHEMA. Decoders check limits."""
    return read_schema(text, RecordLimits())


class _BlockTooLarge(Exception):
    """A block that is larger than allowed."""


class _FileTruncated(Exception):
    """The file ends within its header or a block."""


class _HeaderStream:
    """The beginning of a stream, for reading the header."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream, self._left = stream, LONGEST_HEADER

    def read(self, size: int) -> bytes:
        """See `BinaryIO.read`. Raises ValueError beyond the maximum size of a header."""
        if not 0 <= size <= self._left:
            raise ValueError("its header is too long")
        self._left -= size
        return self._stream.read(size)


def _read_header(stream: BinaryIO) -> tuple[dict[str, bytes], bytes]:
    """The metadata in the header, and the sync marker that ends every block."""
    try:
        header: Any = schemaless_reader(_HeaderStream(stream), HEADER, None)  # type: ignore[arg-type]
    except EOFError:
        raise _FileTruncated from None
    if header["magic"] != MAGIC:
        raise ValueError("it does not begin as Avro files do")
    return header["meta"], header["sync"]


def _find_schema(file: ArchiveFile, text: bytes) -> ValueSchema:
    """The schema that the file has as `text`. Raises ConfigProblem for an unsupported one."""
    try:
        return read_cached_schema(text)
    except NO_SCHEMA as error:
        reason = error.reject.sentence if isinstance(error, ValueMisfit) else "its schema is no Avro schema"
        raise ConfigProblem(f"{file.path} cannot be read: {reason}", next_step=STEP) from None


def _read_block(stream: BinaryIO, sync: bytes, most: int, unpack: Callable[[bytes, int], bytes]) -> tuple[int, bytes]:
    """The number of values in the next block, and their bytes."""
    try:
        count, size = (int(schemaless_reader(stream, "long", None)) for _ in range(2))  # type: ignore[arg-type]
    except EOFError:
        raise _FileTruncated from None
    if size > 2 * most:  # Data that does not compress well may be longer when packed.
        raise _BlockTooLarge(f"a block of {size} bytes")
    if count < 0 or size < 0:
        raise ValueError("a block has a size below 0")
    packed, mark = stream.read(size), stream.read(len(sync))
    if len(mark) < len(sync):
        raise _FileTruncated
    if mark != sync:
        raise ValueError("a block does not end where it says")
    try:
        block = unpack(packed, most)
    except (OSError, zlib.error, lzma.LZMAError, pa.ArrowException) as error:
        raise ValueError("a block cannot be unpacked") from error
    if len(block) > most:
        raise _BlockTooLarge("a block that unpacks to more bytes")
    return count, block


def _unpack_snappy(packed: bytes, most: int) -> bytes:
    """Snappy data begins with the unpacked size, 7 bits per byte. A checksum of the unpacked data is at the end."""
    size = 0
    for number, byte in enumerate(packed[:5]):
        size |= (byte & 0x7F) << (7 * number)
        if byte < 0x80:
            break
    if size > most:
        raise _BlockTooLarge(f"a block that unpacks to {size} bytes")
    block: bytes = pa.Codec("snappy").decompress(packed[:-4], size, asbytes=True)
    if zlib.crc32(block) != int.from_bytes(packed[-4:], "big"):
        raise ValueError("a checksum is wrong")
    return block


CODECS: dict[str, Callable[[bytes, int], bytes]] = {
    "null": lambda packed, _: packed,
    "deflate": lambda packed, most: zlib.decompressobj(-zlib.MAX_WBITS).decompress(packed, most + 1),
    "snappy": _unpack_snappy,
    "bzip2": lambda packed, most: bz2.BZ2Decompressor().decompress(packed, most + 1),
    "xz": lambda packed, most: lzma.LZMADecompressor(memlimit=XZ_MEMORY).decompress(packed, most + 1),
    "zstandard": lambda packed, most: pa.CompressedInputStream(pa.BufferReader(packed), "zstd").read(most + 1),
}
"""Functions that unpack blocks, to at most `most` + 1 bytes."""


# Parquet rows as JSON text in the form of Connect's JsonConverter, with their schema.
#
# A sink writes rows with their Avro schema, which it stores in the file (`parquet.avro.schema`): it is Connect's schema.


SCHEMAS = (b"parquet.avro.schema", b"avro.schema")
"""Metadata names of the schema, from new and old Avro writers of Parquet."""
READABLE_TYPES = (t.is_boolean, t.is_integer, t.is_floating, t.is_string, t.is_binary, t.is_fixed_size_binary, t.is_decimal)
EXACT = Context(prec=100)
"""More digits than Parquet's decimals have."""


def refuse_parquet(file: ArchiveFile, schema: pa.Schema) -> None:
    """Raise ConfigProblem for a file that is not a sink's file of structs."""
    text = _read_schema(schema)
    if text is None:
        raise ConfigProblem(f"{file.path} does not name the schema of its records (parquet.avro.schema)", next_step=STEP)
    names = [field["field"] for field in _find_schema(file, text).connect.get("fields", ())]
    if names != schema.names:
        raise ConfigProblem(f"{file.path} has other columns than the schema that it names", next_step=STEP)
    for field in schema:
        if _avro_type(field.type) is None:
            raise ConfigProblem(
                f"column {field.name!r} of {file.path} is of type {field.type}, which Connect does not have",
                next_step=STEP,
            )


def to_messages(batch: pa.RecordBatch) -> list[bytes]:
    """The messages of rows from an accepted file."""
    schema = read_cached_schema(_read_schema(batch.schema) or b"")
    columns = []
    for column in batch.columns:
        values, mend = column.cast(_avro_type(column.type)).to_pylist(), _make_mend(column.type)
        columns.append(values if mend is None else list(map(mend, values)))
    rows = (dict(zip(batch.schema.names, row, strict=True)) for row in zip(*columns, strict=True))
    return [schema.to_text(row) for row in rows]


def _read_schema(schema: pa.Schema) -> bytes | None:
    return next((text for name in SCHEMAS if (text := (schema.metadata or {}).get(name)) is not None), None)


def _avro_type(kind: pa.DataType) -> pa.DataType | None:
    """The type with integers for dates and times, as in Avro. None for a type that Connect does not have, such as times
    in other units than milliseconds."""
    if t.is_date32(kind) or kind == pa.time32("ms"):
        return pa.int32()
    if t.is_timestamp(kind):
        return pa.int64() if kind.unit == "ms" else None
    if t.is_struct(kind):
        fields = [(kind.field(i).name, _avro_type(kind.field(i).type)) for i in range(kind.num_fields)]
        return pa.struct(fields) if all(inner is not None for _, inner in fields) else None
    if t.is_list(kind):
        items = _avro_type(kind.value_type)
        return None if items is None else pa.list_(items)
    if t.is_map(kind):
        key, item = _avro_type(kind.key_type), _avro_type(kind.item_type)
        return None if key is None or item is None else pa.map_(key, item)
    return kind if any(applies(kind) for applies in READABLE_TYPES) else None


def _make_mend(kind: pa.DataType) -> Mend | None:
    """The conversion from Arrow's values of a type to Avro's; None if they are equal."""
    if t.is_decimal(kind):
        return _keep_null(lambda value: _to_unscaled(value, kind.scale))
    if t.is_list(kind):
        one = _make_mend(kind.value_type)
        return None if one is None else _keep_null(lambda values: [one(value) for value in values])
    if t.is_map(kind):
        of_item = _make_mend(kind.item_type) or (lambda value: value)
        return _keep_null(lambda pairs: {key: of_item(value) for key, value in pairs})
    if not t.is_struct(kind):
        return None
    inner = [kind.field(i) for i in range(kind.num_fields)]
    mends = [(field.name, mend) for field in inner if (mend := _make_mend(field.type)) is not None]
    if not mends:
        return None

    def of_struct(value: dict[str, Any]) -> dict[str, Any]:
        return value | {name: mend(value[name]) for name, mend in mends}

    return _keep_null(of_struct)


def _keep_null(mend: Mend) -> Callable[[Any], Any]:
    return lambda value: None if value is None else mend(value)


def _to_unscaled(value: Decimal, scale: int) -> bytes:
    number = int(value.scaleb(scale, EXACT))
    size = (number if number >= 0 else ~number).bit_length() // 8 + 1
    return number.to_bytes(size, "big", signed=True)
