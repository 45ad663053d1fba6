"""The adapter to SGLang: `eviction_client.engines.sglang.plugin:register`, by the entry point ``sglang.srt.plugins``."""
