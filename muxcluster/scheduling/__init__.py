"""Who runs next, in which job, with how much memory: sans-IO, the same in engine and simulator."""
