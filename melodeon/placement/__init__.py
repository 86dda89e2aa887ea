"""Shares to devices on the topology tree: pure functions from what is wanted and what is held to where it goes.

May import from `core` only; does no IO and reads no clock.
"""
