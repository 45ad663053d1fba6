"""`LPC_LOG_MISSES` in real vLLM: each request's tokens by source, under the id that client and answer have."""

import json
from collections.abc import Iterator

import pytest

from lpc_apps.tiny_llama import build
from tests.engine.test_serve import VllmServer
from tests.eventually import until

START = ": prompt tokens of "


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmServer]:
    folder = tmp_path_factory.mktemp("misses")
    made = VllmServer(
        folder,
        build(folder / "tiny", weights=True),
        LPC_LOG_MISSES="true",
        LPC_LRU_FILE=str(folder / "lru"),
        LPC_PREDICTOR_ADDRESS="127.0.0.1:9",
    )
    try:
        made.wait()
        yield made
    finally:
        made.stop()


@pytest.mark.timeout(900)
def test_each_requests_sources_are_in_the_log_under_its_id_and_its_text_is_not(engine: VllmServer) -> None:
    def logged() -> list[str]:
        return [line.partition(START)[2] for line in engine.log.read_text().splitlines() if START in line]

    found = []
    for name, text in (("first", "zebra " * 90), ("again", "zebra " * 90), ("other", "maple " * 90)):
        answer = engine.client().chat.completions.create(
            model="tiny",
            messages=[{"role": "user", "content": text}],
            max_tokens=4,
            extra_headers={"X-Request-Id": f"client-{name}"},
        )
        assert answer.usage is not None
        count = len(found) + 1
        assert until(lambda count=count: len(logged()) == count, 60)
        request, _, tokens = logged()[-1].partition(": ")
        assert answer.id in json.loads(request) and f"client-{name}" in answer.id
        found.append(json.loads(tokens))
        assert sum(found[-1].values()) == answer.usage.prompt_tokens
    assert found[0]["new"] > 64 and "cached" not in found[0]
    assert found[1]["cached"] == found[0]["new"] and "new" not in found[1]
    assert found[2]["new"] > 64
    assert "zebra" not in "".join(logged())
