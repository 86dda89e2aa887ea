"""One job's control plane: agents, the master's decisions, views, the coordination store. Never imports torch.

Decisions (`master`, `ledger`) are pure; `agent` and the stores do the IO around them.
"""
