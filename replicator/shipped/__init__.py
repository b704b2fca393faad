"""Files that the package ships with its code: the config with its examples, connectors, and scripts of databases.

A wheel has copies of them in this folder (`sources` of the wheel in `pyproject.toml`). An editable install has no copies:
it reads the checkout.
"""

from pathlib import Path

_FOLDER = Path(__file__).parent
_ROOT = _FOLDER if (_FOLDER / "config").is_dir() else _FOLDER.parents[1]


def find_shipped(name: str) -> Path:
    """The shipped file or folder `name`, with its path in the checkout: `config/examples`, `init-scripts`.

    It may belong to another user, and an upgrade replaces it: copy what a user shall change.
    """
    return _ROOT / name
