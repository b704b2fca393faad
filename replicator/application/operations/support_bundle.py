"""Writes diagnostics for a support request into one zip file."""

from __future__ import annotations

import json
import os
import platform
import re
import traceback
import zipfile
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import IO, Any
from urllib.parse import unquote

import msgspec

from replicator.domain.erasures import Erasure
from replicator.domain.errors import ConfigProblem, EnvironmentProblem, ReplicatorError
from replicator.ports.stores import DeadLetter

Parts = Mapping[str, Callable[[], Any]]
"""By the name of each part, the function that makes its content."""
PACKAGES = (
    "replicator", "pyarrow", "duckdb", "deltalake", "pyspark", "delta-spark", "psycopg", "confluent-kafka", "obstore",
    "pydantic", "msgspec", "sqlalchemy", "pymysql", "click",
)  # fmt: skip
README = """\
`replicator support-bundle` wrote this file. It contains the names of hosts, topics, tables and columns, constants of
conditions, and the SQL of targets. It contains no rows and no records: dead letters are only counted. Secrets of the config
are asterisks. Look through the files before you pass them on.

The daemon writes its log to stderr, so the log is not included by itself. `support-bundle --log FILE` adds the last MiB of
FILE as log.txt, with secrets of the config as asterisks. `--log -` reads the log from another program:
`journalctl -u UNIT | replicator support-bundle --log -`, or `docker logs CONTAINER 2>&1 | ...`. If nothing stores the log,
start the daemon with `replicator run 2>> FILE`.
"""
MOST_LOG = 1024 * 1024
"""Maximum bytes of the log."""
MASK = "**********"
IN_URLS = re.compile(r"(?<=:)[^:@/]+(?=@)|(?<=password=)[^&]+")
"""The password in a URL."""
IN_PASSWORDS = re.compile("[@/:?#&]")
SHORTEST_SECRET = 4
"""Minimum characters. Shorter secrets occur in ordinary words."""


def write_bundle(
    path: Path, parts: Parts, secrets: Collection[str], show_line: Callable[[str], None], log: IO[bytes] | None = None
) -> dict[str, str]:
    """Write the zip file: each part as JSON, and the end of `log` without `secrets`. Returns the error of each part, empty
    if it has none.

    A part that fails contains its error. ConfigProblem if the file exists, EnvironmentProblem if it cannot be
    written.
    """
    outcome: dict[str, str] = {}
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        raise ConfigProblem(f"{path} already exists", next_step="Name another file, or remove it.") from None
    except OSError as error:
        raise EnvironmentProblem(
            f"{path} cannot be written ({error.strerror})", next_step="Name a file in an existing folder."
        ) from error
    with zipfile.ZipFile(os.fdopen(handle, "wb"), "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("README.txt", README)
        for name, make_content in parts.items():
            show_line(f"{name} ...")
            try:
                content, outcome[name] = make_content(), ""
            except ReplicatorError as problem:
                content, outcome[name] = {"error": problem.sentence, "next_step": problem.next_step}, problem.sentence
            except Exception as bug:
                # Only the class and code positions: the message may contain values.
                frames = traceback.extract_tb(bug.__traceback__)
                positions = [f"{Path(frame.filename).name}:{frame.lineno} {frame.name}" for frame in frames]
                content = {"error": type(bug).__qualname__, "at": positions}
                outcome[name] = f"an unexpected {type(bug).__qualname__}"
            file.writestr(f"{name}.json", msgspec.json.format(msgspec.json.encode(content, enc_hook=str), indent=2))
        if log is not None:
            end, is_cut = b"", False
            while block := log.read(MOST_LOG):  # The log may be a pipe.
                end, is_cut = (end + block)[-MOST_LOG:], is_cut or len(end) + len(block) > MOST_LOG
            whole_lines = end.partition(b"\n")[2] if is_cut else end
            file.writestr("log.txt", _redact_secrets(secrets, whole_lines.decode(errors="replace")))
            outcome["log"] = ""
    return outcome


def _redact_secrets(secrets: Collection[str], text: str) -> str:
    """The daemon logs no secrets, but other programs may write to the same stream."""
    forms = {*secrets}
    forms |= {part for secret in forms for part in IN_URLS.findall(secret)}
    # A driver may have split the URL inside the password.
    forms |= {part for secret in forms for part in IN_PASSWORDS.split(unquote(secret)) if "://" not in secret}
    forms |= {unquote(secret) for secret in forms} | {json.dumps(secret)[1:-1] for secret in forms}
    for secret in sorted(forms - {"true", "false"}, key=len, reverse=True):
        if len(secret) >= SHORTEST_SECRET:
            text = text.replace(secret, MASK)
    return text


def list_versions(engine: str) -> dict[str, Any]:
    """The versions of the engine, of packages, and of the machine."""
    packages: dict[str, str | None] = {}
    for name in PACKAGES:
        try:
            packages[name] = version(name)
        except PackageNotFoundError:
            packages[name] = None
    return {
        "at": datetime.now(UTC).isoformat(),
        "python": platform.python_version(),
        "system": platform.platform(),
        "processors": os.cpu_count(),
        "engine": engine,
        "packages": packages,
    }


def summarize_dead_letters(letters: Sequence[DeadLetter]) -> dict[str, Any]:
    """The number of dead letters by kind, and the times of the first and the last."""
    kinds = Counter((o.source, o.table, o.lane, o.stage, o.code, o.state) for o in letters)
    names = ("source", "table", "lane", "stage", "code", "state")
    return {
        "letters": len(letters),
        "first_seen": min((o.first_seen for o in letters), default=None),
        "last_seen": max((o.last_seen for o in letters), default=None),
        "kinds": [dict(zip(names, kind, strict=True)) | {"letters": count} for kind, count in kinds.most_common()],
    }


def summarize_erasures(erasures: Iterable[Erasure]) -> list[dict[str, Any]]:
    """The number of erased rows by table."""
    counts = Counter((one.source, one.table) for one in erasures)
    return [{"source": source, "table": table, "forgotten": count} for (source, table), count in counts.items()]
