"""Where the files of an engine's tokenizer lie: in a folder, or in this machine's cache of the hub. None is fetched."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from huggingface_hub import try_to_load_from_cache

from eviction_client.offer import FindFiles, NoTokenizer
from lpc.wire.tokenizer_files import NAMES


def finder(source: str, revision: str | None, caches: Iterable[str | None]) -> FindFiles:
    """Return what finds the files of a tokenizer, in whatever thread. A chat template given by a flag is not seen.

    Args:
        source: a folder, or a name on the hub.
        caches: folders that the engine may have downloaded to; None: the hub's own.
    """
    folders = {None, *caches}

    def find() -> Mapping[str, Path]:
        folder = Path(source)
        if folder.is_dir():
            return {name: folder / name for name in NAMES if (folder / name).is_file()}
        if folder.exists():
            raise NoTokenizer(f"{source} is a file, not a folder")
        found: dict[str, Path] = {}
        for name in NAMES:
            for cache in folders:
                path = try_to_load_from_cache(source, name, cache_dir=cache, revision=revision)
                if isinstance(path, str):
                    found[name] = Path(path)
        if not found:
            raise NoTokenizer(f"{source} is neither a folder nor in this machine's cache of the hub")
        return found

    return find
