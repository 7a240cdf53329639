"""Many units on a virtual clock: the real scheduler and KV bookkeeping, jobs timed by a cost."""
