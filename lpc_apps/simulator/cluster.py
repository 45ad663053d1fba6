"""Runs tasks on a Dask cluster, for sweeps larger than one machine.

Every worker needs this version of the package, one process per core, and the log at the same path. A client checks this first:
a worker with other code would return other figures without an error.
"""

import hashlib
import importlib.util
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from lpc.distribution import install
from lpc_apps.simulator.spread import Task, WorkerError, numbered

if TYPE_CHECKING:
    from distributed import Client, as_completed

CONNECT_S: Final = 10.0
"""Seconds within which the scheduler answers."""
ABANDONED_S: Final = 30.0
"""Seconds without any worker after which a run ends."""
_POLL_S: Final = 0.2
_ONE: Final = threading.Lock()
CODE: Final = ("lpc_apps/logs", "lpc/model", "eviction_client", "lpc_apps/simulator", "lpc_apps/training")
"""Folders of the code on which figures depend."""


@contextmanager
def spreading_on(address: str, tasks: Sequence[Task], files: Sequence[Path] = ()) -> Iterator[Iterator[tuple[int, Any]]]:
    """Start all tasks on a cluster, and yield (index in ``tasks``, result) as each finishes; at the end cancel those left.

    Args:
        address: of the scheduler, host:port or as Dask writes it.
        files: files that tasks read.

    Raises:
        WorkerError: Dask is not installed, the cluster does not answer, a worker does not fit, or workers died.
        Exception: a task's own exception.
    """
    try:
        from distributed import CancelledError, Client, as_completed
        from distributed.scheduler import KilledWorker
    except ModuleNotFoundError as error:
        raise WorkerError(f"--dask needs {error.name}, which is not installed: {install('sim,cluster')}") from error
    try:
        client = Client(address, timeout=CONNECT_S, set_as_default=False)
    except (OSError, ValueError) as error:
        raise WorkerError(
            f"no Dask scheduler answers at {address!r:.100}: give the address that `dask scheduler` logs"
        ) from error

    def results() -> Iterator[tuple[int, Any]]:
        while not done.is_empty():
            _wait(client, done, address)
            for future in done.next_batch():
                yield future.result()

    with client:
        _check(client, address, files)
        futures = [client.submit(_alone, place, *task, pure=False) for place, task in enumerate(tasks)]
        done = as_completed(futures, loop=client.loop)
        try:
            yield results()
        except KilledWorker as error:
            raise WorkerError("workers died at the same task, probably of too little memory: give them more") from error
        except CancelledError as error:
            raise WorkerError(f"the Dask scheduler at {address} has gone: start the sweep again") from error
        finally:
            client.cancel(futures, force=True)


def _alone(place: int, run: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[int, Any]:
    """Run a task while no other thread of the worker runs one, because they share the workload."""
    with _ONE:
        return numbered(place, run, arguments)


def _check(client: "Client", address: str, files: Sequence[Path]) -> None:
    """Raise WorkerError if there is no worker, or one that does not fit."""
    paths = {str(file.resolve()): file.stat().st_size for file in files}

    # Dask sends a local function by value, so it also runs where this package is missing.
    def look(paths: dict[str, int]) -> tuple[str | None, list[str]]:
        from pathlib import Path

        try:
            from lpc_apps.simulator.cluster import code_version
        except ImportError:
            return None, []
        missing = [path for path, size in paths.items() if not Path(path).is_file() or Path(path).stat().st_size != size]
        return code_version(), missing

    try:
        found = client.run(look, paths, on_error="return")
    except OSError as error:
        raise WorkerError(f"the Dask scheduler at {address} has gone: start the sweep again") from error
    if not found:
        raise WorkerError(f"the Dask cluster at {address} has no worker: start some with `dask worker {address}`")
    here = code_version()
    for worker, answer in found.items():
        if isinstance(answer, BaseException):
            reason = f"cannot run this process's functions ({type(answer).__name__}): give it the same version of Python"
        elif answer[0] is None:
            reason = f"lacks the package: {install('sim,cluster')} there"
        elif answer[0] != here:
            reason = "has another version of the package: install the version that this process has"
        elif answer[1]:
            reason = f"does not have {answer[1][0]} as it is here: put the log (and TMPDIR) on a file system that all share"
        else:
            continue
        raise WorkerError(f"the Dask worker {worker} {reason}")


def _wait(client: "Client", done: "as_completed", address: str) -> None:
    """Return when a task has finished. Raise WorkerError if there has been no worker for ABANDONED_S."""
    seen = time.monotonic()
    while not done.has_ready():
        time.sleep(_POLL_S)
        try:
            workers = client.nthreads()
        except OSError as error:
            raise WorkerError(f"the Dask scheduler at {address} has gone: start the sweep again") from error
        if workers:
            seen = time.monotonic()
        elif time.monotonic() - seen > ABANDONED_S:
            raise WorkerError(f"all workers of the Dask cluster at {address} have gone: start some, then the sweep again")


def code_version() -> str:
    """Return a digest of the code on which figures depend."""
    digest = hashlib.blake2b(digest_size=8)
    for folder in CODE:
        package = importlib.util.find_spec(folder.replace("/", "."))
        assert package is not None and package.submodule_search_locations is not None
        root = Path(next(iter(package.submodule_search_locations)))
        for file in sorted(root.rglob("*.py")):
            digest.update(file.relative_to(root).as_posix().encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()
