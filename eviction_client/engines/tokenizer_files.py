"""Finds the files of an engine's tokenizer in a folder or in this machine's cache of the hub. Downloads nothing."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from huggingface_hub import try_to_load_from_cache

from eviction_client.transport.tokenizer_upload import FindFiles, NoTokenizer, files_in
from lpc.wire.tokenizer_files import NAMES, NEEDED, OTHER_FORMATS


def finder(source: str, revision: str | None, caches: Iterable[str | None]) -> FindFiles:
    """Return a thread-safe function that finds a tokenizer's files. It ignores a chat template given by a flag.

    Args:
        source: a folder, or a name on the hub.
        caches: further folders that the engine may download to, besides the hub's default; None entries are ignored.
    """
    folders = {None, *caches}

    def find() -> Mapping[str, Path]:
        folder = Path(source)
        if folder.is_dir():
            return files_in(folder)
        if folder.exists():
            raise NoTokenizer(f"{source} is a file, not a folder with a {NEEDED}")
        found: dict[str, Path] = {}
        for name in (*NAMES, *OTHER_FORMATS):
            for cache in folders:
                path = try_to_load_from_cache(source, name, cache_dir=cache, revision=revision)
                if isinstance(path, str):
                    found[name] = Path(path)
        if not found:
            raise NoTokenizer(f"{source} is neither a folder nor in this machine's cache of the hub")
        return found

    return find
