"""The source for files of Kafka Connect's sinks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from replicator.domain.errors import Retryable

from ..check import ArchiveCheck
from ..file_format import FileFormat
from ..file_list import ArchiveFile
from ..immutable.file_selection import Naming
from ..immutable.source import ImmutableFilesSource
from ..options import ArchiveOptions
from ..stable_files import SETTLED_SECONDS, seconds_until_complete
from .file_list import SinkFile
from .file_names import first_offset, max_records, to_partition
from .sink_format import SinkFileFormat


class ConnectFilesSource(ImmutableFilesSource):
    """A `Source` over files of sinks (see the package), with `pyarrow.Table` as frames. Options of `ArchiveSource`."""

    naming: ClassVar[Naming] = Naming(to_partition, first_offset, max_records, before=1)
    has_sparse_offsets = False

    @staticmethod
    def read_options(options: Mapping[str, object]) -> tuple[ArchiveOptions, FileFormat]:
        """Objects must settle too, because keys and headers are written after the values."""
        own: dict[str, Any] = {"settle": SETTLED_SECONDS, **options}
        read = ArchiveOptions.read(own)
        return read, SinkFileFormat(read.settle or 0.0)

    def _seconds_until_stable(self, file: ArchiveFile) -> float:
        assert isinstance(file, SinkFile)  # noqa: S101 - the format returns no others
        parts = [part for part in (file, file.keys, file.headers) if part is not None]
        left = max(seconds_until_complete(part, self._options.settle, since_copied=True) for part in parts)
        if left <= 0 and file.lacks is not None:
            raise Retryable(
                f"{file.path} has no file of {file.lacks}, but earlier files of its partition have one",
                next_step="The connector writes both again when it is restarted. Otherwise put the missing file there.",
            )
        return left


class ConnectFilesCheck(ArchiveCheck):
    """`ports.diagnosis.Check`, with the options of `ConnectFilesSource`."""

    source = ConnectFilesSource
