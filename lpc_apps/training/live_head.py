"""The live head, extracted from its artefact: the part of the graph after the embedding."""

from pathlib import Path
from typing import Final

import numpy as np
import onnx
import onnx.utils
from numpy.typing import NDArray

from lpc.model.artifact import read_manifest
from lpc.model.onnx_runtime import ort
from lpc.model.probability import P_MIN
from lpc_apps.training.embedding import Embedded

EMBEDDING: Final = "embedding"
PROBABILITY: Final = "probability"


class LiveHead:
    """A version's head as sidecars run it, applied to existing embeddings."""

    def __init__(self, version: Path) -> None:
        """Read the head of a valid version folder. Raises ArtifactError if it has no manifest."""
        self._scalars = read_manifest(version).features.scalars
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        options.log_severity_level = 3
        whole = onnx.load(version / "model.onnx")
        inputs = [EMBEDDING, *(one.name for one in whole.graph.input if one.name == "scalars")]
        graph = onnx.utils.Extractor(whole).extract_model(inputs, [PROBABILITY])
        self._session = ort.InferenceSession(graph.SerializeToString(), options, providers=["CPUExecutionProvider"])

    def probabilities(self, data: Embedded) -> NDArray[np.float64]:
        """Return the probabilities of n examples, [n], in [P_MIN, 1 - P_MIN] as the sidecar returns them."""
        names = {node.name for node in self._session.get_inputs()}
        scalars = np.stack([data.columns[name] for name in self._scalars], axis=1) if self._scalars else None
        found = np.empty(len(data.continues))
        # One at a time, because the rounding of an int8 head (of an older export) depends on the batch.
        for row in range(len(found)):
            inputs = {EMBEDDING: data.embedding[row : row + 1]}
            if scalars is not None and "scalars" in names:
                inputs["scalars"] = scalars[row : row + 1]
            found[row] = self._session.run([PROBABILITY], inputs)[0][0]
        return np.clip(found, P_MIN, 1 - P_MIN)
