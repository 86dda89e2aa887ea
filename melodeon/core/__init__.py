"""The values everything else is written in: frozen, printable, storable.

Nothing here does IO, reads a clock or imports torch; everything above may import from here.
"""
