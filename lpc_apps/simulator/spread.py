"""Runs tasks on processes of this machine."""

import os
import signal
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import resource_tracker
from typing import Any, Final

from lpc.errors import LpcError

PARTS: Final = 4
"""Recommended minimum number of tasks per process, so that progress is visible and no process waits long for the others."""

NICE: Final = 5
"""Added to the niceness of worker processes: what this process computes until it waits for them goes first."""

Task = tuple[Callable[..., Any], tuple[Any, ...]]
"""A function of a module, and its arguments."""


class WorkerError(LpcError):
    """A process died, or a cluster cannot run the tasks."""


def spread(tasks: Sequence[Task], jobs: int | None = 1) -> Iterator[tuple[int, Any]]:
    """Run all tasks on ``jobs`` processes (None: one per core); yield (index in ``tasks``, result) as each finishes.

    Raises:
        WorkerError: a process died.
        Exception: a task's own exception.
    """
    with spreading(tasks, jobs) as found:
        yield from found


@contextmanager
def spreading(tasks: Sequence[Task], jobs: int | None = 1) -> Iterator[Iterator[tuple[int, Any]]]:
    """Start all tasks as :func:`spread` does, and yield its results; at the end of the block stop those that are left.

    With one process they run when their results are asked for.
    """
    if not tasks or processes(jobs) == 1:
        yield (numbered(place, *task) for place, task in enumerate(tasks))
        return
    from joblib import Parallel, delayed
    from joblib.externals.loky.process_executor import TerminatedWorkerError

    niceness = os.getpriority(os.PRIO_PROCESS, 0) + NICE
    work = (delayed(_in_worker)(place, *task, niceness) for place, task in enumerate(tasks))
    found: Generator[tuple[int, Any]] | None = None
    try:
        with _without_signals():
            found = Parallel(n_jobs=processes(jobs), return_as="generator_unordered", batch_size=1)(work)
        yield found
    except TerminatedWorkerError as error:
        raise WorkerError("a worker process died, probably of too little memory: give fewer --jobs") from error
    finally:
        if found is not None:
            with warnings.catch_warnings(action="ignore"):  # it warns that it ends the tasks that are left
                found.close()


@contextmanager
def _without_signals() -> Iterator[None]:
    """Let Ctrl-C and SIGTERM wait. Processes that start in the block do not get them: this process ends them."""
    from joblib.externals.loky.backend import resource_tracker as of_joblib

    for trackers in (resource_tracker, of_joblib):
        trackers.ensure_running()  # else they start in the block, and let the signals through
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _in_worker(place: int, run: Callable[..., Any], arguments: tuple[Any, ...], niceness: int) -> tuple[int, Any]:
    """Run a task in a process that SIGTERM ends again, since its imports are done."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
    os.setpriority(os.PRIO_PROCESS, 0, niceness)
    return numbered(place, run, arguments)


def parts_for(jobs: int | None) -> int:
    """Return the recommended minimum number of tasks."""
    count = processes(jobs)
    return 1 if count == 1 else PARTS * count


def processes(jobs: int | None) -> int:
    """Return the number of processes; None: one per core that this process may use."""
    if jobs == 1:
        return 1
    from joblib import effective_n_jobs  # not needed by one process

    return int(effective_n_jobs(-1 if jobs is None else jobs))


def numbered(place: int, run: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[int, Any]:
    """Run a task; return its place and result."""
    return place, run(*arguments)
