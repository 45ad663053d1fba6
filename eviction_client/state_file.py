"""The files in which an engine's plug-in keeps what it has learned, in the folder `LPC_STATE`.

Several engines, or ranks of one, may have the same folder. Each takes the first file that no other process holds, so ranks that
start again go on from each other's states, which are alike. Readers see a file whole or not at all, also after a crash. A line
is an entry of :mod:`eviction_client.policy.saved`, after one with the time.

Nothing here raises: without the folder, or with a damaged file, the plug-in learns from the beginning and the log says why.
"""

import contextlib
import json
import logging
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from eviction_client.pace import pause
from eviction_client.policy.guard import finite
from lpc.errors import LpcError
from lpc.files import locked, sweep, writing

logger = logging.getLogger(__name__)

MOST_ENGINES: Final = 64
"""Files of a folder."""
MAX_BYTES: Final = 64 * 2**20
"""A larger file is not one of these."""
MODE: Final = 0o600
"""Permissions: with the names of blocks others could test which prompts were served."""
FORMAT: Final = "learned-prefix-cache engine state"


class StateFile:
    """The state of one engine. For one thread.

    Args:
        folder: it is created if it is missing.

    Attributes:
        path: its file; None: there is none, and nothing is saved.
    """

    def __init__(self, folder: Path) -> None:
        self.path: Path | None = None
        self._held = contextlib.ExitStack()
        self._reported = ""
        why = f"{MOST_ENGINES} other engines have a file in it"
        for number in range(MOST_ENGINES):
            path = folder / f"engine-{number}.jsonl"
            try:
                self._held.enter_context(locked(path, wait_s=0.0))
            except LpcError:
                continue
            except OSError as error:
                why = str(error)
                break
            self.path = path
            return
        self._report(f"nothing is kept in {folder}: {why}")

    def read(self) -> tuple[Sequence[Any], float] | None:
        """Return the saved values and their age in seconds; None: there are none."""
        if self.path is None:
            return None
        try:
            if self.path.stat().st_size > MAX_BYTES:
                raise ValueError(f"it has more than {MAX_BYTES} bytes")
            with self.path.open(encoding="ascii") as file:
                head, *values = (json.loads(line) for line in file)
            if head["format"] != FORMAT:
                raise ValueError("another format")
            (at,) = finite([head["at"]], 1)
            return values, max(time.time() - at, 0.0)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, LookupError, TypeError, RecursionError, MemoryError) as error:
            self.unusable(error)
            return None

    def unusable(self, error: Exception) -> None:
        """Log that the file is not used; the next save replaces it."""
        self._report(
            f"the state in {self.path} is not used, so learning starts from the beginning: {type(error).__name__} {error!s:.99}"
        )

    def write(self, values: Iterable[Any]) -> None:
        """Replace the saved values. Pauses for other threads, also on the way to the disk."""
        head = {"format": FORMAT, "at": time.time()}
        self._replace(self.path, (json.dumps(value, separators=(",", ":")).encode() + b"\n" for value in (head, *values)))

    def write_prefixes(self, parts: Iterable[bytes]) -> None:
        """Replace the list of prefixes (:mod:`eviction_client.prefixes`), in a file of its own with the same number."""
        self._replace(self.prefixes, parts)

    def read_prefixes(self) -> Sequence[Any] | None:
        """Return the lines of the list of prefixes; None: there is none that can be read."""
        path = self.prefixes
        try:
            if path is None or path.stat().st_size > MAX_BYTES:
                return None
            with path.open(encoding="ascii") as file:
                return [json.loads(line) for line in file]
        except (OSError, ValueError, RecursionError, MemoryError):
            return None

    def discard_prefixes(self) -> None:
        """Delete the list of prefixes that an earlier process has left, also if it was killed while it wrote one."""
        if self.prefixes is not None:
            with contextlib.suppress(OSError):
                self.prefixes.unlink(missing_ok=True)
                sweep(self.prefixes.parent, self.prefixes.name, older_s=-1.0)

    @property
    def prefixes(self) -> Path | None:
        """File of the list of prefixes; None: there is none."""
        return None if self.path is None else self.path.with_name(self.path.name.replace("engine-", "prefixes-"))

    def _replace(self, path: Path | None, parts: Iterable[bytes]) -> None:
        if path is None:
            return
        try:
            with writing(path, MODE) as file:
                for part in parts:
                    file.write(part)
                    pause()
        except (OSError, LpcError) as error:
            self._report(f"the state in {path} was not saved: {error!s:.200}")
        else:
            self._reported = ""

    def discard(self) -> None:
        """Delete the saved values, because learning from them has failed."""
        if self.path is not None:
            with contextlib.suppress(OSError):
                self.path.unlink(missing_ok=True)

    def close(self) -> None:
        """Leave the file to others."""
        self._held.close()
        self.path = None

    def _report(self, message: str) -> None:
        """Log a message, once as long as it is the same."""
        if message != self._reported:
            self._reported = message
            logger.warning("learned prefix cache: %s", message)
