"""The Java archives of the broker, of Connect and of its connectors: locked by name, version and SHA-256.

The lock (`jars.lock.toml`) contains no addresses. The resolver has a default repository and reads the user's settings
(its own config file, section `[repositories]`). It uses archives of earlier Maven runs if their hash matches.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import tomllib
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import platformdirs
import stamina

from replicator.domain.errors import EnvironmentProblem
from replicator.domain.plain_values import format_count
from replicator.local_files import replace_file

LOCK = Path(__file__).with_name("jars.lock.toml")
DOWNLOADS_AT_ONCE = 8
ATTEMPTS = 4
OF_STORES = {"s3": "s3", "s3a": "s3"}
"""The group of jars that Spark needs for an object store, by its scheme."""


class FetchError(Exception):
    """One attempt to fetch a jar failed."""


@dataclass(frozen=True, slots=True)
class Jar:
    """One locked archive. `coordinate` is group:artifact:version, or group:artifact:version:classifier:type."""

    coordinate: str
    sha256: str

    def path(self, cache_folder: Path) -> Path:
        """The file in the cache: <cache>/<group>/<artifact>-<version>.jar, or -<classifier>.<type>."""
        group, artifact, version, classifier, kind = split_coordinate(self.coordinate)
        return cache_folder / group / f"{'-'.join(filter(None, (artifact, version, classifier)))}.{kind}"


def split_coordinate(coordinate: str) -> tuple[str, str, str, str, str]:
    """Group, artifact, version, classifier (mostly empty) and type of a coordinate."""
    group, artifact, version, *more = coordinate.split(":")
    classifier, kind = more or ("", "jar")
    return group, artifact, version, classifier, kind


def cache_folder() -> Path:
    """REPLICATOR_JAR_CACHE, or a folder in the user's cache. All stacks of the user share it."""
    named = os.environ.get("REPLICATOR_JAR_CACHE")
    return Path(named) if named else Path(platformdirs.user_cache_dir("replicator", appauthor=False)) / "jars"


@cache
def read_lock() -> Mapping[str, tuple[Jar, ...]]:
    """The jars of each group (`kafka`, `connect`, `spark`, `s3`, `registry`, one per connector plugin), in class-path
    order."""
    document = tomllib.loads(LOCK.read_text())
    hashes = document["sha256"]
    return {name: tuple(Jar(c, hashes[c]) for c in members) for name, members in document["groups"].items()}


def find_groups(stores: Iterable[str]) -> list[str]:
    """The groups that Spark needs to reach object stores of these schemes."""
    return sorted({OF_STORES[scheme] for scheme in stores if scheme in OF_STORES})


def fetch_jars(*groups: str) -> list[Path]:
    """The local files of the groups' jars, without duplicates, in class-path order. Missing ones are fetched.

    Several processes may call it at once: a jar gets its name only when it is complete and its hash is right.
    Raises `EnvironmentProblem` if a jar cannot be fetched.
    """
    folder = cache_folder()
    jars = list(dict.fromkeys(jar for group in groups for jar in read_lock()[group]))
    missing = [jar for jar in jars if not jar.path(folder).is_file()]
    if missing:
        folder.mkdir(parents=True, exist_ok=True)
        # The resolver writes directly into its repository folder. In a private one, nobody sees incomplete files.
        with (
            tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder) as scratch,
            ThreadPoolExecutor(DOWNLOADS_AT_ONCE) as pool,
        ):
            list(pool.map(lambda jar: _obtain_jar(jar, folder, Path(scratch)), missing))
    return [jar.path(folder) for jar in jars]


def link_plugin(group: str, folder: Path) -> Path:
    """Fill `folder` with links to exactly the jars of the group, for Connect's `plugin.path`."""
    folder.mkdir(parents=True, exist_ok=True)
    wanted = {jar.name: jar for jar in fetch_jars(group)}
    for stale in [p for p in folder.iterdir() if p.name not in wanted or p.resolve() != wanted[p.name].resolve()]:
        stale.unlink()
    for name in wanted.keys() - {p.name for p in folder.iterdir()}:
        (folder / name).symlink_to(wanted[name].resolve())
    return folder


def is_linked(group: str, folder: Path) -> bool:
    """True if `folder` contains exactly the jars of the group, by name."""
    return {path.name for path in folder.glob("*")} == {jar.path(folder).name for jar in read_lock()[group]}


def _obtain_jar(jar: Jar, folder: Path, scratch: Path) -> None:
    try:
        for attempt in stamina.retry_context(on=FetchError, attempts=ATTEMPTS, timeout=None, wait_initial=0.5):
            with attempt:
                _try_fetch(jar, jar.path(folder), scratch / f"{jar.sha256[:12]}-{attempt.num}", local=attempt.num == 1)
    except FetchError as failure:
        raise EnvironmentProblem(
            f"Could not fetch {jar.coordinate}: {failure}.",
            next_step="Check the network, or name a reachable repository in the resolver's settings (jgo.conf).",
        ) from failure


def _try_fetch(jar: Jar, target: Path, scratch: Path, *, local: bool) -> None:
    try:
        path = Path(find_artifact(make_context(scratch, local=local), jar.coordinate).resolve())
    except (RuntimeError, OSError) as failure:  # an unreachable or refusing repository; requests' errors are OSErrors
        raise FetchError(f"{type(failure).__name__}: {failure}") from failure
    content = path.read_bytes()
    if hashlib.sha256(content).hexdigest() != jar.sha256:
        raise FetchError(f"what arrived ({format_count(len(content), 'byte')}) does not have the locked SHA-256")
    target.parent.mkdir(parents=True, exist_ok=True)
    replace_file(target, content)


def find_artifact(resolver: Any, coordinate: str) -> Any:
    """The artifact of a coordinate, in a resolver's context."""
    group, artifact, version, classifier, kind = split_coordinate(coordinate)
    return resolver.project(group, artifact).at_version(version).artifact(classifier, kind)


def make_context(scratch: Path, *, local: bool) -> Any:
    """The resolver's context, with the user's own repositories. Downloads go to `scratch`. With `local`, it first reads
    an existing Maven repository of this machine."""
    from jgo.config import GlobalSettings  # noqa: PLC0415 - an optional package, needed only when something is missing
    from jgo.maven import MavenContext  # noqa: PLC0415

    settings = GlobalSettings.load()
    remote = {**MavenContext(repo_cache=scratch).remote_repos, **settings.repositories}
    return MavenContext(
        repo_cache=scratch, remote_repos=remote, local_repos=[Path(settings.repo_cache)] if local else [], timeout=60
    )
