"""The gateway: an OpenAI-compatible reverse proxy with response caches, for one or more engines.

The sidecar stores the answers (:mod:`response_cache.client`). Without a sidecar the gateway is a plain proxy.
"""
