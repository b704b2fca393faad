"""The documentation site: every link and anchor leads somewhere, and every page is in the navigation."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

from paths import PROJECT

COLOURS = re.compile(r"\x1b\[[\d;]*m")


def test_site_is_built_without_a_warning(tmp_path: Path) -> None:
    shutil.copy(PROJECT / "mkdocs.yml", tmp_path)
    shutil.copytree(PROJECT / "docs", tmp_path / "docs")
    program = str(Path(sys.executable).with_name("zensical"))
    done = subprocess.run(
        [program, "build", "--strict"], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, COLOURS.sub("", done.stdout + done.stderr)
    site = tmp_path / "build" / "site"
    assert len(list(site.rglob("index.html"))) > 50
    listed = re.findall(r"\]\(([^)]+)\)", (site / "llms.txt").read_text())
    assert [page for page in listed if not (site / page / "index.html").is_file()] == []


def test_every_page_is_in_the_navigation() -> None:
    named = re.findall(r"[\w/-]+\.md", (PROJECT / "mkdocs.yml").read_text().partition("\nnav:")[2])
    pages = {path.relative_to(PROJECT / "docs").as_posix() for path in (PROJECT / "docs").rglob("*.md")}
    assert sorted(named) == sorted(pages)
