"""Pages, docstrings and messages follow the rules of `tests.prose`."""

import pytest

from tests import prose

FOLDERS = ("replicator", "adapters")


@pytest.mark.parametrize(
    ("source", "rule"),
    [
        ('"""What lies beside it."""', "begins without a subject"),
        ('raise Fatal(f"nobody reads the table {name} any more")', "retired word 'nobody'"),
        (f'"""{"word " * 26}."""', "26 words"),
    ],
)
def test_bad_text_in_a_module_is_found(source, rule, tmp_path):
    path = tmp_path / "module.py"
    path.write_text(source)
    assert rule in {finding.rule for finding in prose.check_module(path)}


def test_product_texts_follow_the_rules():
    modules = prose.list_files(*(f"{folder}/*.py" for folder in FOLDERS))
    assert len(modules) > 300
    assert [str(finding) for path in modules for finding in prose.check_module(path)] == []


def test_pages_follow_the_rules():
    """All pages except notes about recorded data."""
    pages = [page for page in prose.list_files("*.md") if "golden" not in page.parts]
    assert len(pages) > 100
    assert [str(finding) for page in pages for finding in prose.check_page(page)] == []
