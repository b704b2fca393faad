from support.settings_fixtures import find_after_change, folder  # noqa: F401
