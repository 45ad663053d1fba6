"""LiteLLM cache (`litellm.cache = LpcCache(...)`) backed by the sidecar's response caches. Needs `litellm`.

It replaces LiteLLM's `Cache` instead of being a store behind it, because `Cache` gives its stores only a hash of the request,
which a semantic tier cannot compare. Only completions are cached; embeddings and transcriptions are not.
LiteLLM's own controls apply (`cache={"no-cache": True}`, `no-store`, `s-maxage`, `ttl`, mode default_off).
"""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from litellm.caching.caching import Cache, CacheMode
from litellm.litellm_core_utils.model_param_helper import ModelParamHelper
from litellm.types.caching import LiteLLMCacheType

from lpc.cache.bodies import body_of, question
from lpc.cache.client import TIMEOUT_S, AsyncResponseCacheClient, ResponseCacheClient
from lpc.cache.misses import PendingMisses
from lpc.cache.v1 import response_cache_pb2 as pb
from lpc.wire.access import Access

COMPLETIONS: Final = ("completion", "acompletion", "text_completion", "atext_completion")


class LpcCache(Cache):
    """Thread-safe; use its asynchronous methods on one event loop.

    Args:
        address: the sidecar's address, host:port or unix:///path.
        access: returns TLS credentials and token.
        scope: name of a scope in the operator's settings; empty means "default". `metadata={"lpc_scope": ...}` overrides it.
        tenant: owner of the answers, if this process serves several. `metadata={"lpc_tenant": ...}` divides it further.
        tags: labels by which the answers can be invalidated.
        timeout_s: longest time that a lookup may take.
        mode: default_on, or default_off to cache only calls with `cache={"use-cache": True}`.
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
        self._misses = PendingMisses()

    def get_cache(self, dynamic_cache_object: object = None, **kwargs: Any) -> Any:
        """Return the cached answer as a JSON object, or None."""
        del dynamic_cache_object
        request = self._request(kwargs)
        return None if request is None else self._body(request, self._client.lookup(request, max_age_s=_max_age(kwargs)))

    async def async_get_cache(self, dynamic_cache_object: object = None, **kwargs: Any) -> Any:
        """As :meth:`get_cache`."""
        del dynamic_cache_object
        request = self._request(kwargs)
        if request is None:
            return None
        return self._body(request, await self._async_client.lookup(request, max_age_s=_max_age(kwargs)))

    def add_cache(self, result: Any, **kwargs: Any) -> None:
        """Store the model's answer."""
        message = self._store_request(result, kwargs)
        if message is not None:
            self._client.store(message)

    async def async_add_cache(self, result: Any, dynamic_cache_object: object = None, **kwargs: Any) -> None:
        """As :meth:`add_cache`."""
        del dynamic_cache_object
        message = self._store_request(result, kwargs)
        if message is not None:
            await self._async_client.store(message)

    async def async_add_cache_pipeline(self, result: Any, dynamic_cache_object: object = None, **kwargs: Any) -> None:
        """Do nothing: LiteLLM calls this for embeddings."""

    async def disconnect(self) -> None:
        """Close both connections."""
        await asyncio.to_thread(self._client.close)
        await self._async_client.close()

    def _request(self, kwargs: Mapping[str, Any]) -> pb.Request | None:
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

    def _store_request(self, result: Any, kwargs: Mapping[str, Any]) -> pb.StoreRequest | None:
        request = self._request(kwargs)
        if request is None:
            return None
        miss = self._misses.pop(request)
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
            request=request, response=response, flight=miss.flight, candidate=miss.candidate, ttl_s=float(ttl or 0.0)
        )

    def _body(self, request: pb.Request, answer: pb.LookupResponse) -> Any:
        if not answer.HasField("hit"):
            self._misses.add(request, answer.miss)
            return None
        response = answer.hit.response
        try:
            body = response.body or body_of(response.chunks)
            return None if body is None else json.loads(body)
        except (ValueError, KeyError, TypeError):
            return None


def _max_age(kwargs: Mapping[str, Any]) -> float | None:
    controls = kwargs.get("cache") or {}
    age = controls.get("s-maxage", controls.get("s-max-age"))
    return None if age is None else float(age)
