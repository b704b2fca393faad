from support.cli_fixtures import _no_width_from_outside, answer, ask, caught_up, project  # noqa: F401
