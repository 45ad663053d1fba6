"""One log of several files, such as a folder of rotated ones.

Readers of logs take one path: a file or a folder. Files from several places become a folder of links.
"""

import errno
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Final

from lpc.errors import UsageError
from lpc_apps.logs.records import DatasetError, TraceError, log_files

STANDARD_INPUT: Final = Path("-")
PACKED: Final = (".gz", ".zst")


def files_of(sources: Sequence[Path], copies: Path) -> list[Path]:
    """Return the files of a log.

    Args:
        sources: files; folders, of which all files count that are not hidden, also in folders inside; named pipes; `-`.
        copies: existing folder for copies of streams, because a log is read more than once.

    Raises:
        TraceError: a folder has no file, or a stream cannot be read.
        UsageError: a file is there twice, also if one of the two is compressed.
    """
    found = [file for source in sources for file in _inside(source, copies)]
    seen: dict[Path, Path] = {}
    for file in found:
        content = file.resolve()
        content = content.with_suffix("") if content.suffix in PACKED else content
        other = seen.setdefault(content, file)
        if other is not file:
            twice = f"{file} is given twice" if other == file else f"{other} and {file} hold the same requests"
            raise UsageError(f"{twice}: leave one out")
    return found


def _inside(source: Path, copies: Path) -> Iterator[Path]:
    try:
        if source == STANDARD_INPUT:
            yield _copied(sys.stdin.buffer, copies / "standard input")
        elif source.is_fifo():
            with source.open("rb") as stream:
                yield _copied(stream, copies / source.name)
        elif source.is_dir():
            yield from log_files(source)
        else:
            source.stat()
            yield source
    except DatasetError as error:
        raise TraceError(str(error)) from error
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise TraceError(
                f"cannot copy {source} to {copies}: {error.strerror}: free space there, or set TMPDIR to another folder"
            ) from error
        raise TraceError(f"cannot read {source}: {error.strerror or error}") from error


def _copied(stream: IO[bytes], copy: Path) -> Path:
    with copy.open("wb") as file:
        shutil.copyfileobj(stream, file)
    return copy


def linked(files: Sequence[Path], folder: Path) -> Path:
    """Return a new folder of links to files, inside ``folder``, with their names and the folders that tell them apart."""
    paths = [Path(os.path.abspath(file)) for file in files]  # noqa: PTH100 (links to files keep their names)
    base = Path(os.path.commonpath([path.parent for path in paths]))
    root = folder / f"{base.name or 'log'} ({len(files)} files)"
    for path in paths:
        # A hidden file that is named is read.
        link = root / Path(*(f"_{part}" if part.startswith(".") else part for part in path.relative_to(base).parts))
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(path)
    return root
