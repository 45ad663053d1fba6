"""The gateway: an OpenAI-compatible reverse proxy before one or more engines that gives answers of the response cache again.

It keeps no answer itself: :mod:`lpc.cache` asks the sidecar, and without a sidecar the gateway is a plain proxy.
"""
