"""LMCache in MP mode, from outside: which chunks its memory tier lets go, and which it has back before they are asked for.

The decisions (:mod:`lpc.lmcache.service` and what it stands on) know neither LMCache nor HTTP. :mod:`lpc.lmcache.controller`
hangs them into LMCache's coordinator, and is the only module that imports LMCache.
"""
