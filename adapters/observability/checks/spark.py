"""Check of the Spark engine: a Java that Spark runs on, Python packages, locked jars."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from replicator.domain.errors import EnvironmentProblem
from replicator.extras import read_extras
from replicator.ports.runtime import Diagnosis

from ...jvm.jars import cache_folder, find_groups, read_lock
from ...jvm.java import find_java_for_spark


class SparkCheck:
    """`ports.runtime.Check`; option `stores`: the schemes of the sinks' object stores."""

    def __init__(self, name: str, options: Mapping[str, Any]) -> None:
        self._name = name
        self._groups = ["spark", *find_groups(options.get("stores", ()))]

    def diagnose(self) -> Sequence[Diagnosis]:
        """Check without a Spark session and without downloads."""
        return [self._check_java(), *self._check_packages(), self._check_jars()]

    def _check_java(self) -> Diagnosis:
        try:
            return Diagnosis("ok", self._name, f"Spark runs on the Java at {find_java_for_spark()}.")
        except EnvironmentProblem as problem:
            return Diagnosis("error", self._name, problem.sentence, problem.next_step)

    def _check_packages(self) -> Iterator[Diagnosis]:
        packages = {name: _installed_version(name) for name in sorted(read_extras()["spark"])}
        missing = [name for name, installed in packages.items() if installed is None]
        if missing:
            step = "Run `pip install 'replicator[spark]'`."
            yield Diagnosis("error", self._name, f"Not installed: {', '.join(missing)}.", step)
        else:
            versions = ", ".join(f"{name} {installed}" for name, installed in packages.items())
            yield Diagnosis("ok", self._name, f"Installed are {versions}.")

    def _check_jars(self) -> Diagnosis:
        jars, folder = [jar for group in self._groups for jar in read_lock()[group]], cache_folder()
        missing = [jar.coordinate for jar in jars if not jar.path(folder).is_file()]
        if not missing:
            return Diagnosis("ok", self._name, f"All {len(jars)} locked jars are in {folder}.")
        sentence = f"{len(missing)} of {len(jars)} locked jars are not in {folder}, {missing[0]} for one."
        return Diagnosis("warning", self._name, sentence, "The first start fetches them, which needs the network.")


def _installed_version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
