"""SGLang as its radix cache needs it."""

from lpc.bench.sglang_environment import settle

settle()
