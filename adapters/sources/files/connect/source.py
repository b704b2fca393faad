"""The source of files of Kafka Connect's sinks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from replicator.domain.errors import Retryable

from ..check import ArchiveCheck
from ..form import Form
from ..listing import ArchiveFile
from ..once.choice import Naming
from ..once.settled import SETTLED_SECONDS, settles_in
from ..once.source import WrittenOnceSource
from ..options import ArchiveOptions
from .form import SinkLines
from .listing import SinkFile
from .names import first_of, most_of, place_of


class ConnectFilesSource(WrittenOnceSource):
    """A `Source` over files of sinks (see the package); frames are `pyarrow.Table`. Options: those of `ArchiveSource`."""

    naming: ClassVar[Naming] = Naming(place_of, first_of, most_of, before=1)
    has_sparse_offsets = False

    @staticmethod
    def read_options(options: Mapping[str, object]) -> tuple[ArchiveOptions, Form]:
        """See `ArchiveSource.read_options`. Objects settle too: keys and headers come after the values."""
        own: dict[str, Any] = {"settle": SETTLED_SECONDS, **options}
        read = ArchiveOptions.read(own)
        return read, SinkLines(read.settle or 0.0)

    def _settles_in(self, file: ArchiveFile) -> float:
        assert isinstance(file, SinkFile)  # noqa: S101 - they are those of the form
        parts = [part for part in (file, file.keys, file.headers) if part is not None]
        left = max(settles_in(part, self._options.settle, since_copied=True) for part in parts)
        if left <= 0 and file.lacks is not None:
            raise Retryable(
                f"{file.path} has no file of {file.lacks} beside it, as earlier ones of its partition have",
                next_step="The connector writes both again when it is restarted. Otherwise put the missing file there.",
            )
        return left


class ConnectFilesCheck(ArchiveCheck):
    """`ports.diagnosis.Check`; the options of `ConnectFilesSource`."""

    source = ConnectFilesSource
