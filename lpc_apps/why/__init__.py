"""Why prompts miss a prefix cache, found in a log: what differs from an earlier prompt, and what a log without it would hit."""
