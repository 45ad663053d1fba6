"""A fleet: several engines of one model behind a router, each with a cache of its own.

- `routers`: which engine gets a request.
- `knowledge`: what a router knows of the engines.
- `run`: one run; an engine or the router may restart in it.
- `verdict`: the paragraph about runs.

An engine is that of `lpc_apps.simulator.engine`, so a fleet of one serves what one engine serves.
"""
