"""Rows of a simulation as they come, and what was read of the log."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from lpc.progress import apart
from lpc_apps.logs.log import Log
from lpc_apps.simulator.run import SimulationRun
from lpc_cli.outcome import note
from lpc_cli.simulation_tables import print_reading


class Collected:
    """Collects rows, and prints once what was read of the log, if there is one.

    Attributes:
        rows: rows by run.
        log: counts of what was read of a log; None: no log.
        stopped: whether Ctrl-C has ended the runs.
    """

    def __init__(self, log: Log | None) -> None:
        self.rows: dict[SimulationRun, dict[str, Any]] = {}
        self.log: dict[str, Any] | None = None
        self.stopped = False
        self._recognised = log is not None and log.recognised

    def add(self, run: SimulationRun, row: dict[str, Any]) -> None:
        """Add the row of a run."""
        log, sample = row.pop("log", None), row["sample"]
        if log is not None and self.log is None:
            self.log = {"format": run.workload.format, "recognised": self._recognised, **log}
            with apart():
                print_reading(self.log)
                if sample > 1:
                    note(f"1 in {sample} conversations is simulated, with 1/{sample} of each cache size; --sample changes that")
        row["by_fraction"] = isinstance(run.capacity, float)
        self.rows[run] = row

    @contextmanager
    def until_stopped(self) -> Iterator[None]:
        """Run the block until Ctrl-C, which is raised only if there is no row yet."""
        try:
            yield
        except KeyboardInterrupt:
            if not self.rows:
                raise
            note(f"stopped after {len(self.rows)} runs; what follows is from these")
            self.stopped = True
