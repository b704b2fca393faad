from support.settings_fixtures import changed, folder  # noqa: F401
