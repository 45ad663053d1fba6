"""Embeddings and continuation probabilities of texts without a sidecar: an encoder alone, and a head on it."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer

from lpc.model.artifact import read_manifest
from lpc.model.conversation import UserTurns
from lpc.model.features import FeatureEncoder, FeatureSettings, ModelInput
from lpc.model.onnx_runtime import ort
from lpc_apps.training.embedding import embeddings_of
from lpc_apps.training.encoders import STATIC, load_encoder, source_of
from lpc_apps.training.export import export
from lpc_apps.training.graph import Precision
from lpc_apps.training.head import Head
from lpc_apps.training.head_file import HeadError, HeadFile


def export_encoder(models: Path, *, encoder: str = STATIC, precision: Precision = "int8") -> Path:
    """Write an encoder with an untrained head to the model repository as `encoder-only`, unless it exists; return its folder.

    Raises:
        EncoderError, ExportError: see `lpc_apps.training.export.export`.
    """
    loaded = load_encoder(encoder)
    metadata = {
        "name": "none",
        "features": FeatureSettings(prefix=loaded.prefix).to_dict(),
        "encoder": loaded.id,
        "encoder_sha256": loaded.sha256,
    }
    torch.manual_seed(0)
    blank = models / ".blank-head.safetensors"
    Head(loaded.width, 1, metadata=metadata).save(blank)
    return export(models, name="encoder-only", encoder=loaded, head=blank, precision=precision)


def encoder_of(models: Path, head: Path) -> Path:
    """Return the folder of the encoder that a head was trained on, without a head; see `export_encoder`. Raises HeadError."""
    return export_encoder(models, encoder=source_of(HeadFile.load(head).metadata["encoder"]))


class HeadScorer:
    """Predicts with a head on an encoder's embeddings.

    Args:
        artifact: a model version folder; its encoder and tokenizer are used, but not its head.
        head: a file written by `lpc train`.

    Attributes:
        window: number of the last user prompts that the head reads.

    Raises:
        ArtifactError: the artefact is missing or broken.
        HeadError: the head is missing, or was trained on another encoder.
    """

    def __init__(self, artifact: Path, head: Path) -> None:
        manifest = read_manifest(artifact)
        self._head = Head.load(head)
        trained = self._head.metadata
        if trained["encoder_sha256"] != manifest.encoder_sha256:
            raise HeadError(
                f"the head {head} was trained on the encoder {trained.get('encoder')}, not on {manifest.encoder_id}: train a "
                "head on this encoder with `lpc embed` and `lpc train`"
            )
        settings = FeatureSettings.from_dict(trained["features"])
        self.window = settings.prompt_window
        self._encoder = FeatureEncoder(Tokenizer.from_file(str(artifact / "tokenizer.json")), settings)
        self._session = ort.InferenceSession(str(artifact / "model.onnx"))
        # The artefact's graph has a head of its own. Its scalars do not change the embedding.
        self._unused = (0.0,) * len(manifest.features.scalars)

    def probabilities(self, turns: Sequence[UserTurns]) -> list[float]:
        """Return the probability that another user turn follows, for each request."""
        features = [self._encoder.encode(turn) for turn in turns]
        texts = [ModelInput(one.input_ids, self._unused) for one in features]
        embedding = embeddings_of(texts, self._session).astype(np.float32)
        scalars = np.array([one.scalars for one in features], np.float32)
        with torch.inference_mode():
            odds = self._head(torch.from_numpy(embedding), torch.from_numpy(scalars))
        found: list[float] = torch.sigmoid(odds).tolist()
        return found
