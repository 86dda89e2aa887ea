"""The training library: virtual workers on PyTorch, and everything that touches a tensor.

The only folder that imports torch. It knows nothing of who started it: a launcher's word comes as `core.launch.Launch`.
Import its modules by name; this package imports none of them.
"""
