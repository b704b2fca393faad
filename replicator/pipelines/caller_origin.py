"""The file and line of a call in the user's program. Messages name it like a line of a YAML config."""

from __future__ import annotations

import sys
from pathlib import Path as FilePath

from replicator.settings import ConfigError, Finding, Origin

OWN_PACKAGE = __name__.rpartition(".")[0]


def find_caller() -> Origin:
    """The file and line of the nearest caller outside this package; the file as seen from the working directory."""
    frame = sys._getframe(1)
    while frame.f_back is not None and str(frame.f_globals.get("__name__", "")).startswith(OWN_PACKAGE):
        frame = frame.f_back
    file = FilePath(frame.f_code.co_filename)
    here = FilePath.cwd()
    return Origin(str(file.relative_to(here) if file.is_relative_to(here) else file), frame.f_lineno)


def make_config_error(at: Origin, code: str, message: str, suggestion: str = "") -> ConfigError:
    """The error for a problem of one call."""
    return ConfigError([Finding("error", code, message, at.file, at.line, suggestion)])
