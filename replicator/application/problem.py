"""Problems: the reasons why something stopped, in words for the operator."""

from __future__ import annotations

from dataclasses import dataclass

from replicator.domain.errors import ExitCode, Fatal, ReplicatorError
from replicator.extras import explain_missing


class Stopped(Exception):
    """Ends a waiting call, since the program is ending. Not an error."""


class AccountingError(Fatal):
    """An accounting identity does not hold: a bug of the program, never ignored."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem, the next step to solve it, and its exit code."""

    code: ExitCode
    sentence: str
    next_step: str = ""

    def to_error(self) -> Fatal:
        """The problem as an error, for a future."""
        error = Fatal(self.sentence, next_step=self.next_step)
        error.exit_code = self.code
        return error


def to_problem(error: BaseException) -> Problem:
    """The problem behind an error.

    For unknown exceptions it names only the class: their text may contain row values.
    """
    if isinstance(error, ModuleNotFoundError):
        error = explain_missing(error, "a part of the program")
    if isinstance(error, ReplicatorError):
        return Problem(error.exit_code, error.sentence, error.next_step)
    return Problem(
        ExitCode.RUNTIME,
        f"An unexpected {type(error).__name__} was raised.",
        "Its traceback is in the log. Please report it.",
    )


def make_accounting_error(sentence: str) -> AccountingError:
    """The error for a broken accounting identity."""
    return AccountingError(sentence, next_step="This is a bug. Please report it.")


def ensure_accounting(holds: bool, sentence: str) -> None:
    """Raise AccountingError with `sentence` unless the identity holds."""
    if not holds:
        raise make_accounting_error(sentence)
