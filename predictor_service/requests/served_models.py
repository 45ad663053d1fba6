"""The models that engines serve, by the names that requests give them."""

import logging
import threading
from collections.abc import Mapping

from transformers import AutoTokenizer

from lpc.errors import ArtifactError
from predictor_service.errors import UnknownServedModel
from predictor_service.requests.chat_template import ServedModel

log = logging.getLogger(__name__)


class ServedModels:
    """The served models by name; each is loaded when it is first asked for. Thread-safe."""

    def __init__(self, paths: Mapping[str, str]) -> None:
        self._paths = dict(paths)
        self._models: dict[str, ServedModel] = {}
        self._lock = threading.Lock()

    @property
    def names(self) -> list[str]:
        """The names that requests may use."""
        return sorted(self._paths)

    def get(self, name: str) -> ServedModel:
        """Return a served model.

        Raises:
            UnknownServedModel: no such name is configured.
            ArtifactError: its tokenizer cannot be loaded.
        """
        model = self._models.get(name)
        if model is not None:
            return model
        path = self._paths.get(name)
        if path is None:
            known = ", ".join(self.names) or "none"
            raise UnknownServedModel(
                f"no tokenizer is configured for the served model {name[:100]!r} (configured: {known}): set served_models / "
                "LPC_SERVED_MODELS in the sidecar"
            )
        with self._lock:
            if name not in self._models:
                self._models[name] = _load(name, path)
        return self._models[name]


def _load(name: str, path: str) -> ServedModel:
    try:
        tokenizer = AutoTokenizer.from_pretrained(path, use_fast=True)
        backend = getattr(tokenizer, "backend_tokenizer", None)
    except Exception as error:  # OSError, ValueError, and what the tokenizers library raises
        reason = str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__
        raise ArtifactError(f"the tokenizer of served model {name} cannot be loaded from {path}: {reason}") from error
    if backend is None:
        raise ArtifactError(f"served model {name} has no fast tokenizer (tokenizer.json) at {path}")
    model = ServedModel(name, tokenizer)
    if model.markup is None:
        log.warning("served model %s has no usable chat template: its prompts count as one user turn", name)
    return model
