"""One loaded model version: its feature encoder and its ONNX Runtime session."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from lpc.errors import ArtifactError, LpcError
from lpc.model.artifact import Manifest, verify
from lpc.model.conversation import UserTurns
from lpc.model.features import FeatureEncoder, ModelInput
from lpc.model.probability import P_MIN
from lpc.model.session import InferenceSettings, Provider, first_line, open_session

_OUT_OF_MEMORY: Final = ("failed to allocate", "smaller than requested", "bad_alloc", "out of memory", "alloc_failed")
"""Parts of ONNX Runtime's messages, in lower case, if a batch does not fit into memory; there is no exception type for it."""


def graph_inputs(batch: Sequence[ModelInput]) -> dict[str, NDArray[Any]]:
    """Return the graph's inputs: input_ids and attention_mask [batch, longest], padded with 0; scalars [batch, n] fp32."""
    longest = max(len(features.input_ids) for features in batch)
    input_ids = np.zeros((len(batch), longest), np.int64)
    attention_mask = np.zeros((len(batch), longest), np.int64)
    for row, features in enumerate(batch):
        tokens = len(features.input_ids)
        input_ids[row, :tokens] = features.input_ids
        attention_mask[row, :tokens] = 1
    scalars = np.array([features.scalars for features in batch], np.float32)
    return {"input_ids": input_ids, "attention_mask": attention_mask, "scalars": scalars}


class Model:
    """A model version, ready to run. Thread-safe: batches run at the same time share its threads.

    Attributes:
        manifest: manifest of the version.
        provider: the provider that the session uses, which may differ from the setting.
    """

    def __init__(self, folder: Path, settings: InferenceSettings) -> None:
        """Load and warm up the artefact in a version folder.

        Raises:
            ArtifactError: the artefact is missing or damaged, or cannot run here.
            ProviderError: CUDA is required but unavailable.
        """
        self.manifest: Manifest = verify(folder)
        self.provider: Provider
        try:
            with ThreadPoolExecutor(1) as aside:  # both take about half a second
                session = aside.submit(open_session, folder / "model.onnx", settings)
                self._features = FeatureEncoder(Tokenizer.from_file(str(folder / "tokenizer.json")), self.manifest.features)
                self._session, self.provider = session.result()
        except LpcError:
            raise
        except Exception as error:  # the libraries raise bare Exception and their own C++ types
            raise ArtifactError(f"the artefact in {folder} cannot be loaded: {first_line(error)}; export it again") from error
        expected = {"input_ids", "attention_mask", "scalars"}
        found = {node.name for node in self._session.get_inputs()}
        if found != expected:
            raise ArtifactError(f"the graph in {folder} has inputs {sorted(found)}, not {sorted(expected)}: export it again")
        self.run([self.encode(UserTurns(("warm-up",), 1))])

    def encode(self, turns: UserTurns) -> ModelInput:
        """Return the model's input for a conversation. Thread-safe."""
        return self._features.encode(turns)

    def run(self, batch: Sequence[ModelInput]) -> list[float]:
        """Return the continuation probability of each conversation, in [P_MIN, 1 - P_MIN].

        Raises:
            ArtifactError: the model returned NaN or an infinite value.
            MemoryError: the batch does not fit into memory.
        """
        return self._probabilities(self._outputs(batch, "probability")[0])

    def run_with_embeddings(self, batch: Sequence[ModelInput]) -> tuple[list[float], list[bytes]]:
        """Like :meth:`run`, but also return each conversation's embedding as little-endian fp16."""
        probability, embedding = self._outputs(batch, "probability", "embedding")
        return self._probabilities(probability), [row.tobytes() for row in embedding.astype("<f2")]

    def _probabilities(self, probability: NDArray[Any]) -> list[float]:
        if not np.isfinite(probability).all():
            raise ArtifactError(f"model version {self.manifest.version} gave a probability that is not a number")
        return [float(p) for p in np.clip(probability, P_MIN, 1.0 - P_MIN)]

    def _outputs(self, batch: Sequence[ModelInput], *names: str) -> list[NDArray[Any]]:
        inputs = graph_inputs(batch)
        try:
            if self.provider == "cuda":
                return self._run_cuda(inputs, names)
            return self._session.run(list(names), inputs)  # type: ignore[no-any-return]
        except Exception as error:
            if any(words in str(error).lower() for words in _OUT_OF_MEMORY):
                raise MemoryError(f"a batch of {inputs['input_ids'].size} tokens: {first_line(error)}") from error
            raise

    def _run_cuda(self, inputs: dict[str, NDArray[Any]], names: Sequence[str]) -> list[NDArray[Any]]:
        binding = self._session.io_binding()
        for name, array in inputs.items():
            binding.bind_cpu_input(name, array)
        for name in names:
            binding.bind_output(name, "cpu")
        self._session.run_with_iobinding(binding)
        return binding.copy_outputs_to_cpu()  # type: ignore[no-any-return]
