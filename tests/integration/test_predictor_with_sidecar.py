"""The client's stream against the real sidecar with a tiny real model."""

from pathlib import Path

import pytest

from benchmarks.processes import free_port
from eviction_client.predictor_client import PredictorClient
from predictor_service.server import running
from predictor_service.settings import ServiceSettings
from tests.chat_templates import STYLES, tokenizer_of
from tests.eventually import eventually


@pytest.fixture(scope="module")
def served_model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[int]]:
    """The folder of a served model's tokenizer, and the ids of a conversation of two user turns."""
    folder = tmp_path_factory.mktemp("served")
    tokenizer = tokenizer_of(STYLES["chatml"])
    tokenizer.save_pretrained(folder)
    messages = [
        {"role": "user", "content": "hello world"},
        {"role": "assistant", "content": "hi"},
        {"role": "user", "content": "what is a cache"},
    ]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return folder, list(tokenizer(text, add_special_tokens=False)["input_ids"])


async def test_token_ids_become_probabilities_through_a_restart_of_the_sidecar(
    tiny_models: Path, tmp_path: Path, served_model: tuple[Path, list[int]]
) -> None:
    folder, ids = served_model
    socket = tmp_path / "sidecar.sock"
    values = {
        "models": tiny_models,
        "model": "tiny",
        "port": free_port(),
        "metrics_port": None,
        "threads": 1,
        "drain_timeout_s": 0.2,
    }
    settings = ServiceSettings(**values, unix_socket=socket, served_models={"m": str(folder)})  # type: ignore[arg-type]
    client = PredictorClient(f"unix://{socket}", served_model="m", timeout_s=60)
    try:
        for start in range(2):
            # Asked before the sidecar is up: answered once it is.
            for n in range(20):
                client.ask((start, n), token_ids=ids)
            client.ask((start, "unknown"), token_ids=ids, served_model="another")
            client.ask((start, "turns"), token_ids=ids, turn_count=7)
            async with running(settings):
                assert await eventually(lambda: client.waiting == 0)
            answers = [client.take((start, n)) for n in range(20)]
            assert all(answer is not None and answer.turn_count == 2 for answer in answers)
            # How they were batched shows in the last digits.
            probabilities = [answer.probability for answer in answers if answer is not None]
            assert probabilities == pytest.approx([probabilities[0]] * 20, rel=1e-4)
            assert 0 < probabilities[0] < 1
            told = client.take((start, "turns"))
            assert told is not None and told.turn_count == 7
            assert client.take((start, "unknown")) is None
        assert client.counters.failed == 2
    finally:
        client.close()
