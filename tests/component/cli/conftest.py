from support.cli_fixtures import _no_outer_terminal_width, caught_up, project, run_cli, run_json  # noqa: F401
