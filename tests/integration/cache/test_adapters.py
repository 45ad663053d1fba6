"""The LangChain and LiteLLM caches on a real sidecar."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from langchain_core.callbacks import CallbackManagerForLLMRun
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.language_models.llms import LLM
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage
from langchain_core.outputs import ChatGeneration, ChatResult

from benchmarks.processes import free_port
from lpc.cache.langchain import LpcCache
from tests.caching_sidecar import ResponseCaches, response_caches
from tests.engine_double import EngineDouble

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def caches(tmp_path_factory: pytest.TempPathFactory, tiny_models: Path) -> Iterator[ResponseCaches]:
    with response_caches(tmp_path_factory.mktemp("caches"), tiny_models, {"default": {}, "faq": {"kind": "faq"}}) as made:
        yield made


class Chat(BaseChatModel):
    """A LangChain chat model that calls the engine."""

    url: str
    model: str = "m"
    temperature: float | None = 0
    finish: str | None = None

    @property
    def _llm_type(self) -> str:
        return "double"

    @property
    def _identifying_params(self) -> dict[str, Any]:
        return {"model": self.model, "temperature": self.temperature}

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        roles = {"human": "user", "ai": "assistant", "system": "system"}
        sent = [{"role": roles[message.type], "content": message.content} for message in messages]
        body = {"model": self.model, "messages": sent, "temperature": self.temperature}
        answer = httpx.post(f"{self.url}/v1/chat/completions", json=body, trust_env=False).json()
        (choice,) = answer["choices"]
        known = {"finish_reason": self.finish or choice["finish_reason"]}
        usage = answer["usage"]
        tokens = {"input_tokens": usage["prompt_tokens"], "output_tokens": usage["completion_tokens"], "total_tokens": 10}
        message = AIMessage(choice["message"]["content"], response_metadata=known, usage_metadata=tokens)
        return ChatResult(generations=[ChatGeneration(message=message)])


class Plain(LLM):
    """A LangChain model for plain prompts; its answers have no finish reason."""

    calls: list[str] = []  # noqa: RUF012 (pydantic copies it)

    @property
    def _llm_type(self) -> str:
        return "plain"

    def _call(
        self, prompt: str, stop: list[str] | None = None, run_manager: CallbackManagerForLLMRun | None = None, **kwargs: Any
    ) -> str:
        self.calls.append(prompt)
        return "answer"


def test_langchain_calls_the_model_once_per_request(caches: ResponseCaches, engine: EngineDouble) -> None:
    cache = LpcCache(caches.sidecar.address, scope="faq", tags=["t"], timeout_s=10)
    model = Chat(url=engine.url, cache=cache)
    chat = [SystemMessage("Be brief."), HumanMessage("What is it?")]
    first, again = model.invoke(chat), model.invoke(chat)
    assert first.content == again.content == "You said: What is it?"
    assert again.response_metadata["finish_reason"] == "stop" and again.response_metadata["lpc_entry"]
    assert len(engine.completions) == 1
    model.invoke([SystemMessage("Be verbose."), HumanMessage("What is it?")])
    Chat(url=engine.url, cache=cache, model="n").invoke(chat)
    assert len(engine.completions) == 3
    assert asyncio.run(model.ainvoke(chat)).content == first.content
    other = LpcCache(caches.sidecar.address, scope="faq", tenant="another", timeout_s=10)
    Chat(url=engine.url, cache=other).invoke(chat)
    assert len(engine.completions) == 4
    cache.clear(tag="t")
    model.invoke(chat)
    assert len(engine.completions) == 5
    cache.clear()
    model.invoke(chat)
    assert len(engine.completions) == 6
    cache.close()
    other.close()


@pytest.mark.parametrize("setting", [{"temperature": 0.7}, {"temperature": None}, {"finish": "length"}])
def test_langchain_does_not_cache_sampled_or_cut_answers(
    caches: ResponseCaches, engine: EngineDouble, setting: dict[str, Any]
) -> None:
    cache = LpcCache(caches.sidecar.address, timeout_s=10)
    model = Chat(url=engine.url, cache=cache, **setting)
    for _ in range(2):
        model.invoke([HumanMessage(f"never {setting}")])
    assert len(engine.completions) == 2
    cache.close()


def test_langchain_works_without_a_sidecar(engine: EngineDouble) -> None:
    cache = LpcCache(f"127.0.0.1:{free_port()}")
    model = Chat(url=engine.url, cache=cache)
    for _ in range(2):
        assert model.invoke([HumanMessage("alone")]).content == "You said: alone"
    assert len(engine.completions) == 2
    plain = Plain(cache=cache)
    assert [plain.invoke("x"), plain.invoke("x")] == ["answer", "answer"]
    cache.close()


async def test_litellm_calls_the_model_once_per_request(caches: ResponseCaches, engine: EngineDouble) -> None:
    import litellm

    from lpc.cache.litellm import LpcCache as LiteCache

    cache = LiteCache(caches.sidecar.address, scope="faq", timeout_s=10)
    litellm.cache = cache
    options: dict[str, Any] = {"model": "openai/m", "api_base": f"{engine.url}/v1", "api_key": "k", "temperature": 0}
    try:

        def ask(text: str, **others: Any) -> str:
            answer = litellm.completion(messages=[{"role": "user", "content": text}], **{**options, **others}, caching=True)
            return str(answer.choices[0].message.content)

        first = await asyncio.to_thread(ask, "lite")
        for _ in range(50):
            again = await asyncio.to_thread(ask, "lite")
            if len(engine.completions) == 1:
                break
        assert first == again == "You said: lite"
        calls = len(engine.completions)
        answer = await litellm.acompletion(messages=[{"role": "user", "content": "lite"}], **options, caching=True)
        assert answer.choices[0].message.content == first
        assert len(engine.completions) == calls
        await asyncio.to_thread(ask, "lite", temperature=0.5)
        await asyncio.to_thread(ask, "lite", metadata={"lpc_tenant": "another"})
        await asyncio.to_thread(ask, "lite", cache={"no-cache": True})
        assert len(engine.completions) == calls + 3
    finally:
        litellm.cache = None
        await cache.disconnect()
