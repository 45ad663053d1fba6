"""Runs tasks on local processes (joblib) or on an existing cluster (Dask or Ray).

A process runs one task at a time, even if the cluster gives it several threads, because simulation and training have state per
process. Tasks of a dead worker run again on others. Results do not depend on the worker.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, TypeVar

from joblib import Parallel, delayed, effective_n_jobs
from joblib.externals.loky.process_executor import TerminatedWorkerError

from lpc.errors import LpcError, UsageError

ANSWER_S: Final = 20
"""Timeout for a cluster to answer, and to have its first worker."""
ATTEMPTS: Final = 4
"""Maximum number of attempts at a task whose workers die; then the task is the likely cause."""
PARTS: Final = 4
"""Recommended minimum number of tasks per worker, so that a dead worker loses little and progress is visible."""

Task = tuple[Callable[..., Any], tuple[Any, ...]]
"""A function of a module, and its arguments."""
Result = TypeVar("Result")

_alone: Final = threading.Lock()


class ClusterError(LpcError):
    """Worker processes or a cluster failed."""


@dataclass(frozen=True)
class Workers:
    """Local processes (``jobs``; -1: one per core), or a cluster.

    Attributes:
        engine: "" for this machine, "dask" or "ray".
        address: address of the cluster: tcp://host:8786, ray://host:10001 or host:6379.
    """

    jobs: int = 1
    engine: str = ""
    address: str = ""


HERE: Final = Workers()


def workers_of(jobs: int | None, cluster: str | None) -> Workers:
    """Parse --jobs (None: one process per core that this process may use) and --cluster (`dask=ADDRESS`, `ray=ADDRESS`).

    Raises UsageError.
    """
    if jobs is not None and jobs < 1:
        raise UsageError("--jobs must be at least 1")
    if cluster is None:
        return Workers(-1 if jobs is None else jobs)
    engine, _, address = cluster.partition("=")
    if engine not in ("dask", "ray") or not address:
        raise UsageError(f"{cluster!r:.60} names no cluster: give dask=tcp://HOST:8786 or ray=ray://HOST:10001")
    if jobs is not None:
        raise UsageError("give either --jobs, for this machine, or --cluster, which has workers of its own")
    return Workers(engine=engine, address=address)


def spread(tasks: Sequence[Task], workers: Workers = HERE) -> Iterator[tuple[int, Any]]:
    """Run all tasks; yield (index in ``tasks``, result) as each finishes.

    Workers of a cluster read a task's files, so these must exist there under the same path.

    Raises:
        ClusterError: no cluster answers, or workers die repeatedly.
        Exception: a task's own exception.
    """
    if not tasks:
        return
    if workers.engine == "ray":
        yield from _by_ray(tasks, workers.address)
    elif workers.engine == "dask":
        yield from _by_dask(tasks, workers.address)
    elif effective_n_jobs(workers.jobs) == 1:
        yield from ((place, run(*arguments)) for place, (run, arguments) in enumerate(tasks))
    else:
        yield from _here(tasks, workers.jobs)


def parts_for(workers: Workers) -> int:
    """Return the recommended minimum number of tasks."""
    if workers.engine:
        return PARTS * 8  # a cluster may grow while it works
    processes = int(effective_n_jobs(workers.jobs))
    return 1 if processes == 1 else PARTS * processes


def alone(place: int, run: Callable[..., Result], arguments: tuple[Any, ...]) -> tuple[int, Result]:
    """Run a task while no other thread of this process runs one."""
    with _alone:
        return place, run(*arguments)


def _here(tasks: Sequence[Task], jobs: int) -> Iterator[tuple[int, Any]]:
    left = dict(enumerate(tasks))
    for attempt in range(1, ATTEMPTS + 1):
        work = (delayed(alone)(place, *task) for place, task in list(left.items()))
        try:
            for place, result in Parallel(n_jobs=jobs, return_as="generator_unordered", batch_size=1)(work):
                del left[place]
                yield place, result
            return
        except TerminatedWorkerError as death:
            if attempt == ATTEMPTS:
                raise ClusterError(
                    f"worker processes died {attempt} times; is there memory for --jobs {jobs}? {death}"
                ) from death


def _by_dask(tasks: Sequence[Task], address: str) -> Iterator[tuple[int, Any]]:
    # Not joblib's Dask backend, which runs everything in this process if the cluster has only one worker.
    try:
        import dask
        from distributed import Client, KilledWorker, as_completed
    except ModuleNotFoundError as error:
        raise ClusterError("Dask is not installed here: pip install 'learned-prefix-cache[cluster]'") from error
    try:
        client = Client(address, timeout=ANSWER_S, set_as_default=False)
    except (OSError, ValueError) as error:
        raise ClusterError(f"no Dask scheduler answers at {address}: {error}") from error
    # A shard's texts are sent with the task, because scattered data would be lost with its worker.
    with client, dask.config.set({"distributed.admin.large-graph-warning-threshold": "1GB"}):
        try:
            client.wait_for_workers(1, timeout=ANSWER_S)
        except TimeoutError as error:
            raise ClusterError(f"the Dask scheduler at {address} has no workers: start some with `dask worker`") from error
        to_do = iter(enumerate(tasks))
        waiting = as_completed([], loop=client.loop)
        while True:
            room = _at_once(sum(client.ncores().values())) - waiting.count()
            waiting.update([client.submit(alone, place, *task, pure=False) for place, task in islice(to_do, max(room, 0))])
            if not waiting.count():
                return
            try:
                yield next(waiting).result()
            except KilledWorker as death:
                raise ClusterError(f"workers of the Dask cluster die at one task; is there memory for it? {death}") from death


def _at_once(processors: int) -> int:
    """Return the number of tasks to submit at once: some wait there, not all, because the cluster stores their arguments."""
    return max(2 * processors, PARTS)


def _by_ray(tasks: Sequence[Task], address: str) -> Iterator[tuple[int, Any]]:
    try:
        import ray
    except ModuleNotFoundError as error:
        raise ClusterError("Ray is not installed here: pip install 'learned-prefix-cache[ray]'") from error
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise ClusterError(f"no Ray cluster answers at {address}: {error}") from error
    try:
        remote = ray.remote(max_retries=ATTEMPTS - 1)(alone)
        to_do = iter(enumerate(tasks))
        waiting: list[Any] = []
        while True:
            room = _at_once(int(ray.cluster_resources().get("CPU", 0))) - len(waiting)
            waiting += [remote.remote(place, *task) for place, task in islice(to_do, max(room, 0))]
            if not waiting:
                return
            done, waiting = ray.wait(waiting)
            try:
                yield from ray.get(done)
            except ray.exceptions.WorkerCrashedError as death:
                raise ClusterError(f"workers of the Ray cluster die at one task; is there memory for it? {death}") from death
            except ray.exceptions.RayTaskError as failed:
                raise failed.cause from failed
    finally:
        ray.shutdown()
