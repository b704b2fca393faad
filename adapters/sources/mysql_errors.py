"""Errors of MariaDB and MySQL as the program's errors: retryable or not. Messages contain no value of a row."""

from __future__ import annotations

from typing import Any

from replicator.domain.errors import ConfigProblem, EnvironmentProblem, Fatal, ReplicatorError, Retryable

AWAY = frozenset(
    {1040, 1053, 1129, 1152, 1158, 1159, 1160, 1161, 1203, 1205, 1213, 1317, 1412, 1836, 1927, 1969, 3024, 4031}
)
"""Too many connections, shutdown, network, lock waits, deadlock, a killed statement, a table that just changed."""
MY_ANSWER_SECONDS = 900
"""The timeout for answers in seconds: the driver itself waits forever on a dead connection."""
LONGER = "It is tried again. Where its statements take longer, add ?read_timeout=SECONDS to `dsn`."
CLIENT = range(2000, 3000)
"""Error numbers of the client: the server is unreachable, or the connection was lost."""
LOST = 2013
DENIED = frozenset({1044, 1045, 1049, 1142, 1143, 1227, 1698})
AT_FAULT = frozenset({1051, 1052, 1054, 1060, 1064, 1146, 1149, 1166, 1222, 1248, 1305, 1356, 1792})


def translate_mysql_error(error: BaseException, doing: str, correct: str) -> ReplicatorError:
    """The program's error for a driver's error, whose first argument is its number. `doing` completes "while ...";
    `correct` is the next step for a statement that the server refuses."""
    number = error.args[0] if error.args else 0
    sentence = f"The server said while {doing}: {driver_message(error)} (error {number})"
    if number == LOST and "timed out" in sentence:
        return Retryable(f"{sentence}.", next_step=LONGER)
    if number in AWAY or number in CLIENT or number == 0:
        return Retryable(f"{sentence}.")
    if number in DENIED:
        return EnvironmentProblem(f"{sentence}.", next_step="Correct user, password and database in `dsn`, or grant SELECT.")
    if number in AT_FAULT:
        return ConfigProblem(f"{sentence}.", next_step=correct)
    return Fatal(f"While {doing}: {type(error).__name__} (error {number}).", next_step=correct)


def driver_message(cause: Any) -> str:
    """The driver's message, at most 300 characters."""
    messages = [part for part in getattr(cause, "args", ()) if isinstance(part, str)]
    return " ".join((messages[0] if messages else type(cause).__name__).split())[:300]
