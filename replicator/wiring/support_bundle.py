"""Collects diagnostics for a support request in one zip file: settings without secrets, versions, status, checks."""

from __future__ import annotations

import json
import os
import platform
import re
import traceback
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import IO, Any
from urllib.parse import unquote

import msgspec
from pydantic import SecretStr

from replicator.domain.errors import ConfigProblem, EnvironmentProblem, ReplicatorError
from replicator.settings import Loaded
from replicator.settings.fields import is_secret
from replicator.settings.schema import remove_event_store

from . import adapters
from .daemon import ask_metrics, ask_status
from .diagnosis import diagnose
from .plan import list_plans
from .stored_lanes import read_status

PACKAGES = (
    "replicator", "pyarrow", "duckdb", "deltalake", "pyspark", "delta-spark", "psycopg", "confluent-kafka", "obstore",
    "pydantic", "msgspec", "sqlalchemy", "pymysql", "click",
)  # fmt: skip
README = """\
What is here was written by `replicator support-bundle`. Secrets of the config are asterisks. Rows and records are not in
it: of dead letters there are counts. Names of hosts, topics, tables and columns, constants of conditions, and the SQL of
targets are. Look through it before you hand it on.

The daemon writes its log to stderr, and to no file that could be found here. `support-bundle --log FILE` adds the last MiB
of FILE as log.txt, secrets of the config as asterisks. `--log -` takes what another program says, as in
`journalctl -u UNIT | replicator support-bundle --log -` or `docker logs CONTAINER 2>&1 | ...`. Where nothing keeps the log,
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


def write_bundle(loaded: Loaded, path: Path, tell: Callable[[str], None], log: IO[bytes] | None = None) -> dict[str, str]:
    """Write the zip file, with the end of `log`. Returns the error of each part, empty if it has none.

    A part that fails contains its error. ConfigProblem if the file exists, EnvironmentProblem if it cannot be
    written.
    """
    parts: dict[str, Callable[[], Any]] = {
        "versions": lambda: _list_versions(loaded),
        "config": lambda: {"files": [str(file) for file in loaded.files], "resolved": loaded.to_redacted()},
        "status": lambda: ask_status(loaded) or read_status(loaded),
        "metrics": lambda: ask_metrics(loaded),
        "plan": lambda: list(list_plans(loaded)),
        "dead_letters": lambda: _summarize_dead_letters(loaded),
        "erasures": lambda: _summarize_erasures(loaded),
        "doctor": lambda: [
            {"severity": d.severity, "subject": d.subject, "sentence": d.sentence, "next_step": d.next_step}
            for d in diagnose(loaded)
        ],
    }
    outcome: dict[str, str] = {}
    with _create_file(path) as file:
        file.writestr("README.txt", README)
        for name, made in parts.items():
            tell(f"{name} ...")
            content, outcome[name] = _call_safely(made)
            file.writestr(f"{name}.json", msgspec.json.format(msgspec.json.encode(content, enc_hook=str), indent=2))
        if log is not None:
            file.writestr("log.txt", _redact_secrets(loaded, _read_end(log)))
            outcome["log"] = ""
    return outcome


def _create_file(path: Path) -> zipfile.ZipFile:
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        raise ConfigProblem(f"{path} is there already", next_step="Name another file, or remove it.") from None
    except OSError as error:
        raise EnvironmentProblem(
            f"{path} cannot be written ({error.strerror})", next_step="Name a file in a folder that is there."
        ) from error
    return zipfile.ZipFile(os.fdopen(handle, "wb"), "w", zipfile.ZIP_DEFLATED)


def _call_safely(made: Callable[[], Any]) -> tuple[Any, str]:
    """The content of a part, and its error. An unexpected error shows only its class and code positions, because
    its message may contain values."""
    try:
        return made(), ""
    except ReplicatorError as problem:
        return {"error": problem.sentence, "next_step": problem.next_step}, problem.sentence
    except Exception as bug:
        places = [f"{Path(f.filename).name}:{f.lineno} {f.name}" for f in traceback.extract_tb(bug.__traceback__)]
        return {"error": type(bug).__qualname__, "at": places}, f"an unexpected {type(bug).__qualname__}"


def _read_end(log: IO[bytes]) -> str:
    """The last whole lines of the log, which may be a pipe."""
    end, cut = b"", False
    while block := log.read(MOST_LOG):
        end, cut = (end + block)[-MOST_LOG:], cut or len(end) + len(block) > MOST_LOG
    return (end.partition(b"\n")[2] if cut else end).decode(errors="replace")


def _redact_secrets(loaded: Loaded, text: str) -> str:
    """The daemon logs no secrets, but other programs may write to the same stream."""
    settings = remove_event_store(loaded.settings)
    known = {*_list_secrets(settings.model_dump()), *(o for name, o in settings.spark.items() if is_secret(("spark", name)))}
    known |= {part for secret in known for part in IN_URLS.findall(secret)}
    # A driver may have split the URL inside the password.
    known |= {part for secret in known for part in IN_PASSWORDS.split(unquote(secret)) if "://" not in secret}
    known |= {unquote(secret) for secret in known} | {json.dumps(secret)[1:-1] for secret in known}
    for secret in sorted(known - {"true", "false"}, key=len, reverse=True):
        if len(secret) >= SHORTEST_SECRET:
            text = text.replace(secret, MASK)
    return text


def _list_secrets(value: Any) -> Iterator[str]:
    if isinstance(value, SecretStr):
        yield value.get_secret_value()
    elif isinstance(value, dict | list | tuple):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _list_secrets(inner)


def _list_versions(loaded: Loaded) -> dict[str, Any]:
    return {
        "at": datetime.now(UTC).isoformat(),
        "python": platform.python_version(),
        "system": platform.platform(),
        "processors": os.cpu_count(),
        "engine": loaded.settings.engine,
        "packages": {name: _get_version(name) for name in PACKAGES},
    }


def _get_version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _summarize_dead_letters(loaded: Loaded) -> dict[str, Any]:
    """The number of dead letters by kind, and the times of the first and the last."""
    with closing(adapters.build_dead_letters(loaded)) as store:
        letters = store.read()
    kinds = Counter((o.source, o.table, o.lane, o.stage, o.code, o.state) for o in letters)
    names = ("source", "table", "lane", "stage", "code", "state")
    return {
        "letters": len(letters),
        "first_seen": min((o.first_seen for o in letters), default=None),
        "last_seen": max((o.last_seen for o in letters), default=None),
        "kinds": [dict(zip(names, kind, strict=True)) | {"letters": count} for kind, count in kinds.most_common()],
    }


def _summarize_erasures(loaded: Loaded) -> list[dict[str, Any]]:
    """The number of erased rows by table."""
    known = adapters.open_erasure_list(loaded).load()
    counts = Counter((one.source, one.table) for one in (known.erasures if known else ()))
    return [{"source": source, "table": table, "forgotten": count} for (source, table), count in counts.items()]
