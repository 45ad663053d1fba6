"""LiteLLM's cache (`litellm.cache = LpcCache(...)`) on the sidecar's response caches. Needs `litellm`.

It stands in place of the whole of LiteLLM's `Cache`, not behind it: that one hashes a request before its stores see it, which
leaves nothing for a semantic tier to compare. Completions only; embeddings, transcriptions and the like are never kept.
LiteLLM's own controls hold (`cache={"no-cache": True}`, `no-store`, `s-maxage`, `ttl`, mode default_off).
"""

import asyncio
import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from typing import Any, Final

from litellm.caching.caching import Cache, CacheMode
from litellm.litellm_core_utils.model_param_helper import ModelParamHelper
from litellm.types.caching import LiteLLMCacheType

from lpc.cache.bodies import body_of, question
from lpc.cache.client import TIMEOUT_S, AsyncResponseCacheClient, ResponseCacheClient
from lpc.cache.v1 import response_cache_pb2 as pb
from lpc.wire.access import Access

MISSES: Final = 10_000
"""Misses whose answers may still be handed in; a model that fails hands in none."""
COMPLETIONS: Final = ("completion", "acompletion", "text_completion", "atext_completion")


class LpcCache(Cache):
    """Thread-safe; its asynchronous half belongs to one event loop.

    Args:
        address: of the sidecar, host:port or unix:///path.
        access: how to get in (TLS, token).
        scope: of the operator's settings; empty is "default". A call's `metadata={"lpc_scope": ...}` names another.
        tenant: whose answers these are, where this process serves several. A call's `metadata={"lpc_tenant": ...}` divides it.
        tags: by which they can be invalidated.
        timeout_s: longest time that looking up may take.
        mode: default_on, or default_off for calls with `cache={"use-cache": True}` only.
    """

    def __init__(
        self,
        address: str,
        *,
        access: Callable[[], Access] = Access,
        scope: str = "",
        tenant: str = "",
        tags: Sequence[str] = (),
        timeout_s: float = TIMEOUT_S,
        mode: CacheMode = CacheMode.default_on,
    ) -> None:
        super().__init__(type=LiteLLMCacheType.LOCAL, mode=mode, supported_call_types=list(COMPLETIONS))
        self._client = ResponseCacheClient(address, access=access, timeout_s=timeout_s)
        self._async_client = AsyncResponseCacheClient(address, access=access, timeout_s=timeout_s)
        self._scope, self._tenant, self._tags = scope, tenant, tags
        self._lock = threading.Lock()
        self._misses: OrderedDict[bytes, pb.Miss] = OrderedDict()

    def get_cache(self, dynamic_cache_object: object = None, **kwargs: Any) -> Any:
        """Return the answer that was kept, as JSON, if there is one."""
        del dynamic_cache_object
        asked = self._question(kwargs)
        return None if asked is None else self._body(asked, self._client.lookup(asked, max_age_s=_max_age(kwargs)))

    async def async_get_cache(self, dynamic_cache_object: object = None, **kwargs: Any) -> Any:
        """As :meth:`get_cache`."""
        del dynamic_cache_object
        asked = self._question(kwargs)
        if asked is None:
            return None
        return self._body(asked, await self._async_client.lookup(asked, max_age_s=_max_age(kwargs)))

    def add_cache(self, result: Any, **kwargs: Any) -> None:
        """Hand in what the model answered."""
        message = self._store(result, kwargs)
        if message is not None:
            self._client.store(message)

    async def async_add_cache(self, result: Any, dynamic_cache_object: object = None, **kwargs: Any) -> None:
        """As :meth:`add_cache`."""
        del dynamic_cache_object
        message = self._store(result, kwargs)
        if message is not None:
            await self._async_client.store(message)

    async def async_add_cache_pipeline(self, result: Any, dynamic_cache_object: object = None, **kwargs: Any) -> None:
        """Of embeddings: nothing is kept."""

    async def disconnect(self) -> None:
        """Hang up."""
        await asyncio.to_thread(self._client.close)
        await self._async_client.close()

    def _question(self, kwargs: Mapping[str, Any]) -> pb.Request | None:
        used: object = self.should_use_cache(**kwargs)  # type: ignore[no-untyped-call]
        if used is not True or not ("messages" in kwargs or isinstance(kwargs.get("prompt"), str)):
            return None
        known = ModelParamHelper._get_all_llm_api_params()
        body = {name: value for name, value in kwargs.items() if name in known and value is not None and name != "input"}
        metadata = kwargs.get("metadata") or {}
        tenant = f"{self._tenant}\0{metadata['lpc_tenant']}" if "lpc_tenant" in metadata else self._tenant
        try:
            return question(body, scope=str(metadata.get("lpc_scope", self._scope)), tenant=tenant, tags=self._tags)
        except (ValueError, TypeError, KeyError):
            return None

    def _store(self, result: Any, kwargs: Mapping[str, Any]) -> pb.StoreRequest | None:
        asked = self._question(kwargs)
        if asked is None:
            return None
        with self._lock:
            miss = self._misses.pop(_name(asked), pb.Miss())
        response = None
        try:
            text = result if isinstance(result, str) else result.model_dump_json()
            answer = json.loads(text)
            (choice,) = answer["choices"]
            usage = answer.get("usage") or {}
            response = pb.Response(
                body=text.encode(),
                finish_reason=choice["finish_reason"],
                prompt_tokens=usage.get("prompt_tokens", 0),
                completion_tokens=usage.get("completion_tokens", 0),
            )
        except (ValueError, TypeError, KeyError, AttributeError):
            if not (miss.flight or miss.candidate):
                return None
        ttl = kwargs.get("ttl") or (kwargs.get("cache") or {}).get("ttl")
        return pb.StoreRequest(
            request=asked, response=response, flight=miss.flight, candidate=miss.candidate, ttl_s=float(ttl or 0.0)
        )

    def _body(self, asked: pb.Request, answer: pb.LookupResponse) -> Any:
        if not answer.HasField("hit"):
            with self._lock:
                self._misses[_name(asked)] = answer.miss
                while len(self._misses) > MISSES:
                    self._misses.popitem(last=False)
            return None
        response = answer.hit.response
        try:
            body = response.body or body_of(response.chunks)
            return None if body is None else json.loads(body)
        except (ValueError, KeyError, TypeError):
            return None


def _name(asked: pb.Request) -> bytes:
    """Return what a request is remembered by between its lookup and its answer."""
    return sha256(asked.SerializeToString(deterministic=True)).digest()


def _max_age(kwargs: Mapping[str, Any]) -> float | None:
    controls = kwargs.get("cache") or {}
    age = controls.get("s-maxage", controls.get("s-max-age"))
    return None if age is None else float(age)
