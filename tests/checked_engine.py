"""A scripted engine with a prefix cache by salt, which answers with log-probabilities, for tests of hit checks."""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from starlette.types import Send

from tests.engine_double import EngineDouble, whole

Said = tuple[tuple[str, float], ...]
"""Tokens and their probabilities, the most probable first."""
RIGHT: Said = (("right", 0.9), ("wrong", 0.05), ("other", 0.01))
WRONG: Said = (("wrong", 0.9), ("right", 0.05), ("other", 0.01))
ROUNDED: Said = (("right", 0.88), ("wrong", 0.06), ("other", 0.02))


@dataclass
class CheckedEngine(EngineDouble):
    """An engine whose requests hit all but the last token of a prompt that it has had with the same salt.

    Attributes:
        speaks: returns what it says, of the request's body, and of whether it hits.
        block: prompts are cached up to a multiple of so many characters.
        reports: whether answers report cached tokens.
        salted: whether it reads salts.
        status: of its answers to requests for log-probabilities, which are those of checks.
        broken: body of these answers in place of an answer.
        metrics: text of its /metrics.
        models: its /v1/models; None: as of `EngineDouble`.
        held: whether such requests wait for `further`.
    """

    speaks: Callable[[dict[str, Any], bool], Said] = lambda asked, hit: RIGHT
    reports: bool = True
    salted: bool = True
    status: int = 200
    broken: bytes | None = None
    metrics: str = ""
    models: Any = None
    held: bool = False
    cached: set[tuple[object, str]] = field(default_factory=set)

    @property
    def checking(self) -> list[Any]:
        """The requests of checks, in their order."""
        return [one for one in self.completions if b"logprobs" in one.body and b'"mine"' not in one.body]

    async def _answer(self, request: Any, path: str, send: Send) -> None:
        if path == "/metrics":
            await whole(send, 200, self.metrics.encode())
        elif path == "/v1/models" and self.models is not None:
            await whole(send, 200, json.dumps(self.models).encode())
        else:
            await super()._answer(request, path, send)

    async def _complete(self, asked: dict[str, Any], chat: bool, send: Send) -> None:
        prompt = json.dumps(asked.get("messages", asked.get("prompt")))
        place = asked.get("cache_salt") if self.salted else None, prompt
        hit = place in self.cached
        self.cached.add(place)
        details = {"prompt_tokens_details": {"cached_tokens": (len(prompt) - 1) * hit}} if self.reports else {}
        usage = {"prompt_tokens": len(prompt), "completion_tokens": 1, "total_tokens": len(prompt) + 1, **details}
        if not asked.get("logprobs") or "mine" in asked:
            self.usage = usage
            await super()._complete(asked, chat, send)
            return
        if self.held:
            await self.further.wait()
        said = self.speaks(asked, hit)
        listed = [{"token": token, "logprob": math.log(one), "bytes": list(token.encode())} for token, one in said]
        chosen = {**listed[0], "top_logprobs": listed}
        if chat:
            choice = {"message": {"role": "assistant", "content": said[0][0]}, "logprobs": {"content": [chosen]}}
        else:
            tops = {one["token"]: one["logprob"] for one in listed}
            found = {"tokens": [said[0][0]], "token_logprobs": [math.log(said[0][1])], "top_logprobs": [tops]}
            choice = {"text": said[0][0], "logprobs": found}
        body = json.dumps({"id": "c", "model": "m", "choices": [{"index": 0, **choice}], "usage": usage}).encode()
        await whole(send, self.status, body if self.broken is None else self.broken)
