from support.cli_fixtures import _no_outer_terminal_width, answer, ask, caught_up, project  # noqa: F401
