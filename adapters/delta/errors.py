"""Translates delta-rs errors into errors of this program. Unknown errors are fatal."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa
from deltalake.exceptions import CommitFailedError, DeltaError, DeltaProtocolError, SchemaMismatchError, TableNotFoundError

from replicator.domain.errors import EnvironmentProblem, Fatal, ReplicatorError, Retryable

from ..object_store.options import is_store_error, translate_store_error

_OS_ERROR = re.compile(r"\(os error (\d+)\)")

_NEWER = re.compile(r"Kernel error: (Unsupported|Invalid protocol)")

_PASSING = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ESTALE, errno.ETIMEDOUT, errno.EINTR}
_LASTING = {errno.EACCES, errno.EPERM, errno.EROFS, errno.EFBIG, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP}

RESTORE = "Restore it, then `replicator lanes resume LANE`; or load the lane again with `replicator lanes resync LANE`."

_SENTENCES: dict[type[Exception], str] = {
    TableNotFoundError: "there is no Delta table {}",
    DeltaProtocolError: "table {} uses a Delta feature that delta-rs cannot write",
    SchemaMismatchError: "rows do not fit the schema of table {}",
}


_GONE = re.compile(r"Object at location (.+?) not found")
"""The message of delta-rs, for any kind of storage."""


_OF_READ = "Object Store error"
"""Rows of delta-rs are read through a stream of Arrow, whose errors are all of one class."""

_LOST_RACE = "Failed to commit transaction: "
"""The message of delta-rs. Its other failed commits, for example a delete in an append-only table, would fail again."""


class FileGone(Fatal):
    """A file of a table's snapshot does not exist.

    If another program rewrote and vacuumed the table, the newest snapshot names other files.
    """


def translate_error(error: Exception, table: str) -> ReplicatorError:
    """The error to raise instead of `error`, which concerned `table`. It never contains a row's values.

    A full or failing disk may recover. Missing rights and read-only disks do not. Every protocol error is
    fatal.
    """
    if isinstance(error, ReplicatorError):
        return error
    problem_of_store = translate_store_error(str(error), f"table {table}")
    if match := _GONE.search(str(error)):
        missing_file = f"a data file of table {table} is gone: {match[1]}"
        return FileGone(problem_of_store.sentence if problem_of_store else missing_file, next_step=RESTORE)
    if problem_of_store is not None:
        return problem_of_store
    number = find_os_error(error)
    if number is not None:
        return _translate_os_error(number, table)
    if isinstance(error, CommitFailedError) and _LOST_RACE in str(error):
        return Retryable(f"another writer changed table {table} first")
    sentences = (sentence for kind, sentence in _SENTENCES.items() if isinstance(error, kind))
    sentence = next(sentences, "Delta refused an operation on table {}").format(table)
    return Fatal(f"{sentence}: {first_line(error)}")


def find_os_error(error: BaseException) -> int | None:
    """The operating system's error number of `error`, also if delta-rs has it only in its text."""
    if isinstance(error, OSError) and error.errno:
        return error.errno
    match = _OS_ERROR.search(str(error))
    return int(match[1]) if match else None


def is_gone(error: Exception) -> bool:
    """True when a file was not found."""
    return isinstance(error, FileGone) or _GONE.search(str(error)) is not None


def is_newer(error: DeltaError) -> bool:
    """True when delta-rs cannot read a table because the table needs a newer protocol."""
    return type(error) is DeltaError and _NEWER.search(str(error)) is not None


def is_damage(error: DeltaError) -> bool:
    """True when delta-rs could read a file, but not understand it."""
    return type(error) is DeltaError and find_os_error(error) is None and not is_store_error(str(error))


def first_line(error: Exception) -> str:
    """The error's message without the stack that delta-rs appends, shortened so that it cannot quote much data."""
    return str(error).strip().split("\n", 1)[0][:300]


@contextmanager
def translate_errors(table: str) -> Iterator[None]:
    """Raises the result of `translate_error` for an error of the disk or of delta-rs, also while rows are read."""
    try:
        yield
    except ReplicatorError:
        raise
    except (OSError, DeltaError, pa.ArrowInvalid) as error:
        if isinstance(error, pa.ArrowInvalid) and _OF_READ not in str(error):
            raise
        raise translate_error(error, table) from error


def _translate_os_error(number: int, table: str) -> ReplicatorError:
    name = errno.errorcode.get(number, str(number))
    if number in (errno.EMFILE, errno.ENFILE):
        return Retryable(
            f"no file of table {table} can be opened: the {'process' if number == errno.EMFILE else 'machine'} has no file "
            f"descriptor left ({name})",
            next_step="Raise the limit of open files: LimitNOFILE of the service, or `ulimit -n` before the start.",
        )
    if number in _PASSING:
        return Retryable(f"the disk under table {table} refuses to write: {name}")
    if number == errno.ENAMETOOLONG:
        return Fatal(
            f"a folder of table {table} would have a longer name than its disk allows",
            next_step="A partition's folder has the name of its value, in an event log the name of its topic. Each byte "
            "that is not ASCII needs three characters. Partition by another column, or use an event log in PostgreSQL.",
        )
    problem = EnvironmentProblem if number in _LASTING else Fatal
    return problem(f"table {table} cannot be reached: {name}", next_step="Check the lake's folder, its rights and its disk.")
