"""How long a source has said nothing while it was listened to."""

from __future__ import annotations

from replicator.domain.errors import EnvironmentProblem, Retryable

from .lanes import Clock


class Silence:
    """Raises EnvironmentProblem when the source says nothing for `limit` seconds; never without a limit. For one thread."""

    def __init__(self, source: str, clock: Clock) -> None:
        self.limit: float | None = None
        self._source = source
        self._clock = clock
        self._since: float | None = None
        self._seconds = 0.0
        self._refused_at: float | None = None
        self._progress: object = None

    def listen(self) -> None:
        """From now on it is the source's turn."""
        self._since = self._clock()

    def heard(self, progress: object, *, is_empty: bool) -> None:
        """A batch came. `progress` differs once something was read since the last time."""
        if progress != self._progress or self._since is None or not is_empty:
            self._progress, self._seconds, self._refused_at = progress, 0.0, None
        else:
            self._seconds += self._clock() - self._since
        self._raise_after(self._seconds, "No records come, though it is not at its end.")

    def refused(self, error: Retryable, progress: object) -> None:
        """The source does not answer. `progress` differs once something was read since the last time."""
        if self._refused_at is None or progress != self._progress:
            self._refused_at, self._progress = self._clock(), progress
        self._raise_after(self._clock() - self._refused_at, error.sentence)

    def _raise_after(self, seconds: float, why: str) -> None:
        if self.limit is not None and seconds >= self.limit:
            raise EnvironmentProblem(
                f"Source {self._source} has been silent for {seconds:.0f} s: {why}",
                next_step="`replicator doctor` looks at the source. Wait longer with `--timeout SECONDS`. The next run "
                "goes on from the positions of its lanes.",
            )
