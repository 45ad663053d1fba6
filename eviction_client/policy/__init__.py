"""Which blocks an engine keeps: reuse classes, rules, the free queue, ghost caches and the guard."""
