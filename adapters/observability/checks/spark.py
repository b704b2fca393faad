"""Check of the Spark engine: a Java that Spark runs on, Python packages, locked jars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
        try:
            java = Diagnosis("ok", self._name, f"Spark runs on the Java at {find_java_for_spark()}.")
        except EnvironmentProblem as problem:
            java = Diagnosis("error", self._name, problem.sentence, problem.next_step)
        installed, absent = [], []
        for name in sorted(read_extras()["spark"]):
            try:
                installed.append(f"{name} {version(name)}")
            except PackageNotFoundError:
                absent.append(name)
        packages = Diagnosis("ok", self._name, f"Installed are {', '.join(installed)}.")
        if absent:
            step = "Run `pip install 'replicator[spark]'`."
            packages = Diagnosis("error", self._name, f"Not installed: {', '.join(absent)}.", step)
        all_jars, folder = [jar for group in self._groups for jar in read_lock()[group]], cache_folder()
        missing = [jar.coordinate for jar in all_jars if not jar.path(folder).is_file()]
        jars = Diagnosis("ok", self._name, f"All {len(all_jars)} locked jars are in {folder}.")
        if missing:
            sentence = f"{len(missing)} of {len(all_jars)} locked jars are not in {folder}, {missing[0]} for one."
            jars = Diagnosis("warning", self._name, sentence, "The first start fetches them, which needs the network.")
        return [java, packages, jars]
