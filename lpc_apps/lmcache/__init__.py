"""Eviction for LMCache in MP mode, from outside: which chunks to delete from memory.

The decisions (:mod:`lpc_apps.lmcache.service` and the modules that it imports) use neither LMCache nor HTTP.
:mod:`lpc_apps.lmcache.controller` connects them to the coordinator. Only it and :mod:`lpc_apps.lmcache.coordinator` import
LMCache.
"""
