"""Where jobs run: starting, watching and ending worker processes, and the folders that runs write to.

Does IO, never imports torch, and knows nothing of the training library that the workers use.
"""
