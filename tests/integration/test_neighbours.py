"""A text's answer does not depend on the texts next to it in a batch: neither on their lengths nor on their content."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tokenizers import Tokenizer

from lpc.model.conversation import UserTurns
from lpc.model.features import FeatureEncoder, FeatureSettings, ModelInput
from lpc.model.inference import graph_inputs
from lpc.model.onnx_runtime import ort
from lpc_apps.training.encoders import load_encoder, source_of
from lpc_apps.training.graph import PRECISIONS, Precision, write_onnx
from lpc_apps.training.head_file import SHIPPED_HEADS, HeadFile
from lpc_apps.training.prompts import PROMPTS
from tests.tiny_model import build_tiny_artifact

WITHIN = {"fp32": 1e-6, "fp16": 2e-3, "int8": 1e-6}
"""Largest differences of a probability and of an embedding's component: only the order of sums differs."""
TEXTS = st.text(st.sampled_from("ab 09?世界\n"), max_size=300)
CONVERSATIONS = st.lists(st.builds(UserTurns, st.tuples(TEXTS), st.integers(1, 9)), min_size=1, max_size=16)


class Graph:
    """An exported graph and its tokenizer, on one thread."""

    def __init__(self, graph: Path, tokenizer: Tokenizer, features: FeatureSettings | None = None) -> None:
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        options.log_severity_level = 3
        self._session = ort.InferenceSession(str(graph), options, providers=["CPUExecutionProvider"])
        self._features = FeatureEncoder(tokenizer, features or FeatureSettings())

    def run(self, batch: Sequence[ModelInput]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        probability, embedding = self._session.run(["probability", "embedding"], graph_inputs(batch))
        return probability, embedding

    def largest_difference(self, conversations: Sequence[UserTurns]) -> float:
        """Return the largest difference between answers in one batch and answers alone."""
        batch = [self._features.encode(turns) for turns in conversations]
        together, alone = self.run(batch), [self.run([one]) for one in batch]
        return max(
            float(np.abs(found[row] - one[output][0]).max())
            for output, found in enumerate(together)
            for row, one in enumerate(alone)
        )


@pytest.fixture(scope="module", params=PRECISIONS)
def tiny(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Precision, Graph]:
    folder = build_tiny_artifact(tmp_path_factory.mktemp(request.param), precision=request.param)
    return request.param, Graph(folder / "model.onnx", Tokenizer.from_file(str(folder / "tokenizer.json")))


@settings(max_examples=25)
@given(conversations=CONVERSATIONS)
def test_a_transformers_answer_does_not_depend_on_its_neighbours(
    tiny: tuple[Precision, Graph], conversations: list[UserTurns]
) -> None:
    precision, graph = tiny
    assert graph.largest_difference(conversations) <= WITHIN[precision]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("recipe", ["default", pytest.param("lpc", marks=pytest.mark.nightly)])
def test_a_shipped_models_answer_does_not_depend_on_its_neighbours(recipe: str, tmp_path: Path) -> None:
    """With one scale for a batch, e5's probabilities differed by up to 0.019."""
    head = HeadFile.load(SHIPPED_HEADS / recipe / "head.safetensors")
    encoder = load_encoder(source_of(head.metadata["encoder"]))
    write_onnx(encoder, head, "int8", tmp_path / "model.onnx")
    graph = Graph(tmp_path / "model.onnx", encoder.tokenizer, FeatureSettings.from_dict(head.metadata["features"]))
    assert graph.largest_difference(PROMPTS) <= WITHIN["int8"]
    for start in range(0, len(PROMPTS), 6):
        assert graph.largest_difference(PROMPTS[start : start + 6]) <= WITHIN["int8"]
