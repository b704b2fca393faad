"""Why something stopped, in words for the operator."""

from __future__ import annotations

from dataclasses import dataclass

from replicator.domain.errors import ExitCode, Fatal, ReplicatorError


class Stopped(Exception):
    """The end was asked for while a call was waiting; unwinds to whoever began the work. Not an error."""


class AccountingError(Fatal):
    """The program contradicts itself (an accounting identity does not hold): a bug, never ignored."""


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong, what to do about it, and the exit code it stands for."""

    code: ExitCode
    sentence: str
    next_step: str = ""

    def to_error(self) -> Fatal:
        """The problem for somebody who waits for an outcome."""
        error = Fatal(self.sentence, next_step=self.next_step)
        error.exit_code = self.code
        return error


def to_problem(error: BaseException) -> Problem:
    """The problem behind an error. Of an unknown exception only the class is shown: its text may hold values of rows."""
    if isinstance(error, ReplicatorError):
        return Problem(error.exit_code, error.sentence, error.next_step)
    return Problem(
        ExitCode.RUNTIME,
        f"An unexpected {type(error).__name__} was raised.",
        "The log holds its traceback; please report it.",
    )


def make_accounting_error(sentence: str) -> AccountingError:
    """The error for a contradiction."""
    return AccountingError(sentence, next_step="This is a bug; please report it.")


def ensure_accounting(holds: bool, sentence: str) -> None:
    """Raise Broken with `sentence` unless the identity holds."""
    if not holds:
        raise make_accounting_error(sentence)
