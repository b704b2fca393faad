from support.application_fixtures import quiet_log  # noqa: F401
