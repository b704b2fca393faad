"""The Java archives of the broker, of Connect and of its connectors: locked by name, version and SHA-256.

The lock (`jars.lock.toml`) holds no address: the resolver knows its default repository and honours the user's settings
(its own config file, section `[repositories]`). What an earlier Maven run left on this machine is used when its hash fits.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import platformdirs
import stamina

from replicator.domain.errors import EnvironmentProblem

LOCK = Path(__file__).with_name("jars.lock.toml")
DOWNLOADS_AT_ONCE = 8
ATTEMPTS = 4
OF_STORES = {"s3": "s3", "s3a": "s3"}
"""By the scheme of an object store, the group that Spark reaches it with."""


class FetchError(Exception):
    """One attempt to get one jar failed."""


@dataclass(frozen=True, slots=True)
class Jar:
    """One locked archive. `coordinate` is group:artifact:version, or group:artifact:version:classifier:type."""

    coordinate: str
    sha256: str

    def path(self, cache_folder: Path) -> Path:
        """Where it is kept: <cache>/<group>/<artifact>-<version>.jar, or -<classifier>.<type>."""
        group, artifact, version, classifier, kind = split_coordinate(self.coordinate)
        return cache_folder / group / f"{'-'.join(filter(None, (artifact, version, classifier)))}.{kind}"


def split_coordinate(coordinate: str) -> tuple[str, str, str, str, str]:
    """Group, artifact, version, classifier (empty for most) and type of a coordinate."""
    group, artifact, version, *more = coordinate.split(":")
    classifier, kind = more or ("", "jar")
    return group, artifact, version, classifier, kind


def cache_folder() -> Path:
    """REPLICATOR_JAR_CACHE, or the user's cache folder; shared by all stacks of the user."""
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
    """The jars of the groups on this machine, fetched if need be, each once, in class-path order.

    Safe to call from several processes at once: a jar appears under its name only whole and with the right hash.
    Raises `EnvironmentProblem` when one cannot be had.
    """
    folder = cache_folder()
    jars = list(dict.fromkeys(jar for group in groups for jar in read_lock()[group]))
    missing = [jar for jar in jars if not jar.path(folder).is_file()]
    if missing:
        _download(missing, folder)
    return [jar.path(folder) for jar in jars]


def link_plugin(group: str, folder: Path) -> Path:
    """Make `folder` hold links to exactly the jars of the group, as Connect's `plugin.path` wants them."""
    folder.mkdir(parents=True, exist_ok=True)
    wanted = {jar.name: jar for jar in fetch_jars(group)}
    for stale in [p for p in folder.iterdir() if p.name not in wanted or p.resolve() != wanted[p.name].resolve()]:
        stale.unlink()
    for name in wanted.keys() - {p.name for p in folder.iterdir()}:
        (folder / name).symlink_to(wanted[name].resolve())
    return folder


def is_linked(group: str, folder: Path) -> bool:
    """True when `folder` holds exactly the jars of the group, by their names."""
    return {path.name for path in folder.glob("*")} == {jar.path(folder).name for jar in read_lock()[group]}


def _download(jars: Sequence[Jar], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    # The resolver writes straight into its repository folder; a private one keeps half a file from ever being seen.
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder) as scratch, ThreadPoolExecutor(DOWNLOADS_AT_ONCE) as pool:
        list(pool.map(lambda jar: _obtain_jar(jar, folder, Path(scratch)), jars))


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
    found = _resolve_jar(jar.coordinate, scratch, local=local)
    content = found.read_bytes()
    if hashlib.sha256(content).hexdigest() != jar.sha256:
        raise FetchError(f"what arrived ({len(content)} bytes) does not have the locked SHA-256")
    target.parent.mkdir(parents=True, exist_ok=True)
    whole = target.with_name(f".{target.name}.{os.getpid()}")
    whole.write_bytes(content)
    whole.replace(target)


def _resolve_jar(coordinate: str, scratch: Path, *, local: bool) -> Path:
    try:
        return Path(find_artifact(make_context(scratch, local=local), coordinate).resolve())
    except (RuntimeError, OSError) as failure:  # an unreachable or refusing repository; requests' errors are OSErrors
        raise FetchError(f"{type(failure).__name__}: {failure}") from failure


def find_artifact(resolver: Any, coordinate: str) -> Any:
    """What a coordinate names, in a resolver's context."""
    group, artifact, version, classifier, kind = split_coordinate(coordinate)
    return resolver.project(group, artifact).at_version(version).artifact(classifier, kind)


def make_context(scratch: Path, *, local: bool) -> Any:
    """The resolver's context, with the user's own repositories; downloads go to `scratch`, and with `local` an existing
    Maven repository of this machine is read first."""
    from jgo.config import GlobalSettings  # noqa: PLC0415 - an optional package, needed only when something is missing
    from jgo.maven import MavenContext  # noqa: PLC0415

    settings = GlobalSettings.load()
    remote = {**MavenContext(repo_cache=scratch).remote_repos, **settings.repositories}
    return MavenContext(
        repo_cache=scratch, remote_repos=remote, local_repos=[Path(settings.repo_cache)] if local else [], timeout=60
    )
