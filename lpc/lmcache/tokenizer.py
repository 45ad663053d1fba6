"""The served model's tokenizer, which the sidecar is offered so that it can read prompts: its files in a folder."""

from collections.abc import Mapping
from pathlib import Path

from eviction_client.offer import FindFiles, NoTokenizer
from lpc.lmcache.settings import LMCacheSettings
from lpc.wire.tokenizer_files import NAMES


def finder_of(settings: LMCacheSettings) -> FindFiles | None:
    """Return what finds the files; None where no folder is set: then the sidecar must know the model's name."""
    folder = settings.tokenizer
    if folder is None:
        return None

    def find() -> Mapping[str, Path]:
        found = {name: folder / name for name in NAMES if (folder / name).is_file()}
        if not found:
            raise NoTokenizer(f"{folder} holds no tokenizer")
        return found

    return find
