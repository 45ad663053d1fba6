"""The files of the tokenizer that a vLLM has loaded: in its folder, or in this machine's cache of the hub. None is fetched."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from huggingface_hub import try_to_load_from_cache

from eviction_client.offer import FindFiles, NoTokenizer
from lpc.wire.tokenizer_files import NAMES


def finder_of(vllm_config: Any) -> FindFiles:
    """Return what finds the files of an engine's tokenizer, in whatever thread. A chat template given by a flag is not seen."""
    model, loading = vllm_config.model_config, getattr(vllm_config, "load_config", None)
    source, revision = str(model.tokenizer), getattr(model, "tokenizer_revision", None)
    caches = {None, getattr(loading, "download_dir", None)}

    def find() -> Mapping[str, Path]:
        folder = Path(source)
        if folder.is_dir():
            return {name: folder / name for name in NAMES if (folder / name).is_file()}
        if folder.exists():
            raise NoTokenizer(f"{source} is a file, not a folder")
        found: dict[str, Path] = {}
        for name in NAMES:
            for cache in caches:
                path = try_to_load_from_cache(source, name, cache_dir=cache, revision=revision)
                if isinstance(path, str):
                    found[name] = Path(path)
        if not found:
            raise NoTokenizer(f"{source} is neither a folder nor in this machine's cache of the hub")
        return found

    return find
