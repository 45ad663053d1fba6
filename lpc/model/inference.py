"""One loaded model version: its feature encoder and its ONNX Runtime session."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray
from tokenizers import Tokenizer

from lpc.errors import ArtifactError
from lpc.model.arrivals import Arrival
from lpc.model.artifact import THINK_TIME, Manifest, verify
from lpc.model.conversation import UserTurns
from lpc.model.features import FeatureEncoder, Features
from lpc.model.probability import P_MIN
from lpc.model.think_time import ThinkTime, ThinkTimeError

log = logging.getLogger(__name__)

MIB: Final = 2**20


@dataclass(frozen=True)
class InferenceSettings:
    """Where and how a session runs. ``threads`` 0: one per core; ``cuda_memory_mib`` bounds the CUDA arena."""

    provider: Literal["auto", "cpu", "cuda"] = "auto"
    threads: int = 0
    cuda_memory_mib: int = 512


class LogNormal(NamedTuple):
    """A distribution of seconds: mean and standard deviation of ln(seconds), both finite."""

    log_mean: float
    log_sigma: float


def graph_inputs(batch: Sequence[Features]) -> dict[str, NDArray[Any]]:
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
    """A model version, ready to run. Not thread-safe: one thread runs it.

    Attributes:
        manifest: what the version's folder holds.
        provider: where the session runs.
        think_time: when the next turn comes; None where the version has not learnt it.
    """

    def __init__(self, folder: Path, settings: InferenceSettings) -> None:
        """Load and warm up the artefact in a version folder.

        Raises:
            ArtifactError: it is missing, damaged or cannot be run here.
        """
        self.manifest: Manifest = verify(folder)
        self.provider = _provider(settings)
        try:
            self._features = FeatureEncoder(Tokenizer.from_file(str(folder / "tokenizer.json")), self.manifest.features)
            self._session = _session(folder / "model.onnx", self.provider, settings)
        except Exception as error:  # the libraries raise bare Exception and their own C++ types
            reason = str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__
            raise ArtifactError(f"the artefact in {folder} cannot be loaded: {reason}; export it again") from error
        expected = {"input_ids", "attention_mask", "scalars"}
        found = {node.name for node in self._session.get_inputs()}
        if found != expected:
            raise ArtifactError(f"the graph in {folder} takes {sorted(found)}, not {sorted(expected)}: export it again")
        self.think_time: ThinkTime | None = None
        if THINK_TIME in self.manifest.files:
            try:
                self.think_time = ThinkTime.load(folder / THINK_TIME)
            except ThinkTimeError as error:
                raise ArtifactError(f"{error}, and export it with `lpc export --think-time`") from error
        self.run([self.encode(UserTurns(("warm-up",), 1))])

    def encode(self, turns: UserTurns) -> Features:
        """Return the model's input for a conversation. Thread-safe."""
        return self._features.encode(turns)

    def run(self, batch: Sequence[Features]) -> list[float]:
        """Return the continuation probability of each conversation, in [P_MIN, 1 - P_MIN].

        Raises:
            ArtifactError: the model gave something that is not a probability.
        """
        return self._probabilities(self._outputs(batch, "probability")[0])

    def run_with_embeddings(self, batch: Sequence[Features]) -> tuple[list[float], list[bytes]]:
        """Return what :meth:`run` does, and each conversation's embedding as little-endian fp16. Raises as it does."""
        probability, embedding = self._outputs(batch, "probability", "embedding")
        return self._probabilities(probability), [row.tobytes() for row in embedding.astype("<f2")]

    def _probabilities(self, probability: NDArray[Any]) -> list[float]:
        if not np.isfinite(probability).all():
            raise ArtifactError(f"model version {self.manifest.version} gave a probability that is not a number")
        return [float(p) for p in np.clip(probability, P_MIN, 1.0 - P_MIN)]

    def _outputs(self, batch: Sequence[Features], *names: str) -> list[NDArray[Any]]:
        inputs = graph_inputs(batch)
        if self.provider == "cuda":
            return self._run_cuda(inputs, names)
        return self._session.run(list(names), inputs)  # type: ignore[no-any-return]

    def think_times(self, arrivals: Sequence[Arrival]) -> list[LogNormal | None]:
        """Return when each conversation's next turn is expected after this one's arrival, given that it comes.

        None for all where the version has not learnt it, and for one whose distribution is not finite.
        """
        model = self.think_time
        if model is None or not arrivals:
            return [None] * len(arrivals)
        columns = np.array([(a.turn_count, a.input_tokens, a.gaps.last, a.gaps.mean_log, a.hour) for a in arrivals], np.float64)
        turn, input_tokens, last_gap, mean_log_gap, hour = columns.T
        # Not as the caller wrote it: NumPy would make every name of the batch as long as the longest.
        category = np.array([a.category if a.category in model.categories else "" for a in arrivals], np.str_)
        with np.errstate(all="ignore"):
            found = model.predict(
                turn, input_tokens=input_tokens, last_gap=last_gap, mean_log_gap=mean_log_gap, hour=hour, category=category
            )
        finite = np.isfinite(found.log_mean) & np.isfinite(found.log_sigma)
        rows = zip(finite.tolist(), found.log_mean.tolist(), found.log_sigma.tolist(), strict=True)
        return [LogNormal(log_mean, log_sigma) if sound else None for sound, log_mean, log_sigma in rows]

    def _run_cuda(self, inputs: dict[str, NDArray[Any]], names: Sequence[str]) -> list[NDArray[Any]]:
        binding = self._session.io_binding()
        for name, array in inputs.items():
            binding.bind_cpu_input(name, array)
        for name in names:
            binding.bind_output(name, "cpu")
        self._session.run_with_iobinding(binding)
        return binding.copy_outputs_to_cpu()  # type: ignore[no-any-return]


def _provider(settings: InferenceSettings) -> Literal["cpu", "cuda"]:
    available = "CUDAExecutionProvider" in ort.get_available_providers()
    if settings.provider == "cuda" and not available:
        raise ArtifactError(
            "provider is cuda, but this build of ONNX Runtime has no CUDA: install "
            "learned-prefix-cache[gpu], or set provider=auto"
        )
    return "cuda" if available and settings.provider != "cpu" else "cpu"


def _session(path: Path, provider: Literal["cpu", "cuda"], settings: InferenceSettings) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = settings.threads
    options.log_severity_level = 3
    if provider == "cpu":
        # The thread pool must not spin between batches: the cores belong to the engine and the event loop.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    cuda = {"gpu_mem_limit": settings.cuda_memory_mib * MIB, "arena_extend_strategy": "kSameAsRequested"}
    session = ort.InferenceSession(str(path), options, providers=[("CUDAExecutionProvider", cuda), "CPUExecutionProvider"])
    if session.get_providers()[0] != "CUDAExecutionProvider":
        if settings.provider == "cuda":
            raise ArtifactError("provider is cuda, but no CUDA device could be used; see ONNX Runtime's message above")
        log.warning("no usable CUDA device: inference runs on the CPU")
    return session
