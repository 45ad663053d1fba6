"""What the sidecars of one fleet share through Redis: their turns, so that a return counts whichever sidecar gets it.

Engines give each request to the sidecar with the least to do, and a conversation's next request may come from another engine:
no routing would keep conversations together, least of all those without an id. So every turn leaves a record under the name
by which the next one finds it (`predictor_service.labels.names`): keyed hashes and numbers, never text, for one horizon. The
sidecar that gets the next turn takes the record, learns from it what came before, and notifies the one that left it.

Without Redis, or while it is away, each sidecar knows its own turns only, and no answer waits or fails for it.
"""
