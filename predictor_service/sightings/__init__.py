"""What sidecars of one fleet tell each other of the turns that they have seen, through Redis, so that a turn counts as returned
whichever of them its next one reaches.

Engines give each request to the sidecar with the least to do, and a conversation's next request may come from another engine:
no way of routing would keep conversations together, least of all those that carry no id. So every turn leaves a sighting under
the name by which the next one will know it (`predictor_service.labels.names`): keyed hashes and numbers, never text, for one
horizon. The sidecar that gets the next turn takes the sighting away, learns from it what came before, and tells the one that
left it.

Without Redis, or while it is away, each sidecar knows its own turns only, and no answer waits or fails for it.
"""
