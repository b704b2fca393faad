"""Files that pages outside the site, such as README.md, and pictures of all pages link to."""

from __future__ import annotations

import re

import pytest
from paths import PROJECT

LINK = re.compile(r"\]\((?!https?:|mailto:|#)([^)\s#]+)")
PAGES = [*sorted(PROJECT.glob("*.md")), *sorted((PROJECT / "docs").rglob("*.md")), *sorted(PROJECT.glob("[!.]*/README.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(PROJECT).as_posix())
def test_linked_files_exist(page):
    assert [target for target in LINK.findall(page.read_text()) if not (page.parent / target).exists()] == []
