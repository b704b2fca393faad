"""A complete config, and ways to load variants of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from replicator.settings import NO_PLUGINS, ConfigError, Finding, Loaded, Plugins, load_settings

WHOLE = (Path(__file__).parent / "whole.yaml").read_text(encoding="utf-8")


class Folder:
    """A project folder with `config/replicator.yaml` in it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.file = root / "config" / "replicator.yaml"
        self.environ: dict[str, str] = {}
        self.plugins: Plugins = NO_PLUGINS
        self.write(WHOLE)

    def write(self, text: str, name: str = "replicator.yaml") -> Path:
        file = self.file.parent / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        return file

    def change(self, old: str, new: str) -> int:
        """Replace the only occurrence of `old`; the line (1-based) of the first line that differs."""
        assert WHOLE.count(old) == 1, f"{WHOLE.count(old)} occurrences of {old!r}"
        text = WHOLE.replace(old, new)
        self.write(text)
        pairs = zip(WHOLE.splitlines(), text.splitlines(), strict=False)
        return next(number for number, (one, other) in enumerate(pairs, 1) if one != other)

    def load(self, env: str | None = None, overrides: Iterable[str] = ()) -> Loaded:
        return load_settings(self.file, env, overrides, environ=self.environ, plugins=self.plugins)

    def findings(self, env: str | None = None, overrides: Iterable[str] = ()) -> tuple[Finding, ...]:
        with pytest.raises(ConfigError) as caught:
            self.load(env, overrides)
        assert caught.value.exit_code == 2
        assert all(finding.message for finding in caught.value.findings)
        return caught.value.findings

    def only(self, env: str | None = None, overrides: Iterable[str] = ()) -> Finding:
        findings = self.findings(env, overrides)
        assert len(findings) == 1, [str(finding) for finding in findings]
        return findings[0]


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


@pytest.fixture
def find_after_change(folder: Folder) -> Callable[[str, str], tuple[Finding, int]]:
    """The only finding after one change of the whole config, and the line of that change."""

    def change(old: str, new: str) -> tuple[Finding, int]:
        line = folder.change(old, new)
        return folder.only(), line

    return change
