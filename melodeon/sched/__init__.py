"""Who gets how much: policies and the round that runs them, as pure functions of a view and a state.

May import from `core` and `placement`; does no IO, reads no clock. Policies do not know each other.
"""
