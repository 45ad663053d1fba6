"""Eviction and prefetch for LMCache in MP mode, from outside: which chunks to delete from memory, which to load ahead of use.

The decisions (:mod:`lpc.lmcache.service` and the modules that it imports) use neither LMCache nor HTTP.
:mod:`lpc.lmcache.controller` connects them to LMCache's coordinator; besides :mod:`lpc.lmcache.coordinator`, only it imports
LMCache.
"""
