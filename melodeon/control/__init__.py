"""The live cluster: one log of events, one fold of them into a state, one round on a wall clock, hands that follow.

May use everything below it: the simulator (to play the cluster forward), the backends (to run jobs), the scheduler.
"""
