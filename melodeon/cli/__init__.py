"""Commands, tables and exit codes: the only folder that prints.

Importing it never imports torch; a command that needs the runtime imports it inside its function.
"""
