"""From a conversation of the wire format to its user turns: limits, tokenizers, and decoding of token ids."""
