"""What people look at, made from what a run wrote down: traces and screens. Pure: values in, values out.

Nothing here reads a file, asks a job or looks at a clock; the commands do, and hand in what they found.
"""
