"""From a conversation on the wire to its user turns: what may be asked, and how token ids are read back."""
