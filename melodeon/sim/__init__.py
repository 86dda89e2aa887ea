"""The trace-driven simulator: the same round as the live controller, on a clock that is a number.

May import from `sched`, `placement` and `core`; `sim.traces` reads files and `sim.results` reads and writes
result files; nothing else here does IO.
"""
