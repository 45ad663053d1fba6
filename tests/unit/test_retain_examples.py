"""The forms in which docs/reference/hints.md gives retain seconds to others, against what these read.

vLLM's own type is in tests/engine/test_scheduler.py. The others cannot be installed here. Their fields are those of the sources
named at each, as of 2026.
"""

import json
import re
import sys
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, ConfigDict, Field, validate_call

DOCS = Path(__file__).parents[2] / "docs"
Priority = Annotated[int, Field(strict=True, ge=0, le=100)]


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Directive(Strict):
    """vllm-project/vllm#38514: tests of chat_completion/protocol.py; llm-d/llm-d-router#2928: README of kv-cache-hint."""

    start: Annotated[int, Field(strict=True, ge=0)] = 0
    end: Annotated[int, Field(strict=True, gt=0)] | None = None
    priority: Priority = 0
    duration: Annotated[float, Field(gt=0, le=86_400)] | None = None


class Directives(Strict):
    retention_directives: Annotated[list[Directive], Field(max_length=16)]
    retention_scope: Annotated[str, Field(min_length=1, max_length=128)]


class AgentHints(Strict):
    """ai-dynamo/dynamo: lib/llm/src/protocols/common/extensions.rs, which denies unknown fields."""

    priority: Annotated[int, Field(strict=True, ge=-(2**31), lt=2**31)] | None = None
    strict_priority: int | None = None
    osl: int | None = None
    speculative_prefill: bool | None = None
    latency_sensitivity: float | None = None


class NvExt(Strict):
    """Of the same file. It has more fields, but no `cache_control`."""

    agent_hints: AgentHints


class Body(Strict):
    nvext: NvExt


def example(heading: str) -> Any:
    text = (DOCS / "reference/hints.md").read_text()
    return json.loads(re.findall(r"```json\n(.*?)```", text.split(f"### {heading}\n")[1], re.DOTALL)[0])


def test_the_directives_are_those_of_vllm_and_of_llm_ds_router() -> None:
    said = Directives.model_validate(example("vllm#38514 and llm-d-router#2928"))
    assert said.retention_directives == [Directive(start=0, end=None, priority=60, duration=90.0)]
    recorded = (
        '{"retention_directives": [{"start": 0, "end": 16384, "priority": 70, "duration": 12.8}], "retention_scope": "s"}'
    )
    Directives.model_validate_json(recorded)  # from the README of llm-d-router's kv-cache-hint-v2


def test_dynamos_priority_is_a_field_that_it_knows() -> None:
    assert Body.model_validate(example("NVIDIA Dynamo")).nvext.agent_hints == AgentHints(priority=1)


class TokenRange:
    """NVIDIA/TensorRT-LLM: the constructors of nanobind/executor/request.cpp."""

    @validate_call
    def __init__(
        self,
        token_start: Annotated[int, Field(ge=0)],
        token_end: int | None,
        priority: Priority,
        duration_ms: Annotated[timedelta, Field(strict=True)] | None = None,
    ) -> None:
        self.said = (token_start, token_end, priority, duration_ms)


class KvCacheRetentionConfig:
    TokenRangeRetentionConfig = TokenRange

    def __init__(
        self,
        token_range_retention_configs: list[TokenRange],
        decode_retention_priority: int = 35,
        decode_duration_ms: timedelta | None = None,
    ) -> None:
        self.ranges = [one.said for one in token_range_retention_configs]
        self.decode = (decode_retention_priority, decode_duration_ms)


@pytest.mark.parametrize(
    ("seconds", "priority", "duration"), [(90.0, 60, timedelta(seconds=90)), (0.0, 0, None), (1e9, 60, timedelta(hours=4))]
)
def test_tensorrt_llms_retention_is_soft_and_clipped(
    monkeypatch: pytest.MonkeyPatch, seconds: float, priority: int, duration: timedelta | None
) -> None:
    llmapi = ModuleType("tensorrt_llm.llmapi")
    monkeypatch.setattr(llmapi, "KvCacheRetentionConfig", KvCacheRetentionConfig, raising=False)
    for name in ("tensorrt_llm", "tensorrt_llm.llmapi"):
        monkeypatch.setitem(sys.modules, name, llmapi)
    page = (DOCS / "how-to/install/other-engines.md").read_text()
    code = re.findall(r"```python\n(def retention.*?)\n\n\n", page, re.DOTALL)[0]
    names: dict[str, Any] = {}
    exec(code, names)
    config = names["retention"](seconds)
    assert config.ranges == [(0, None, priority, duration)] and config.decode == (priority, duration)
