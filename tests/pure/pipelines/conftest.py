from support.pipelines_fixtures import _log_as_before, staff  # noqa: F401
