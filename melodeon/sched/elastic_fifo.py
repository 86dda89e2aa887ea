"""Elastic FIFO (Elan): jobs start in order of submission under Elan's admission rule and grow by its allocation rule.

The first job that may not start keeps all later ones waiting. Nobody is stopped once it runs.
"""

from dataclasses import dataclass

from melodeon.core.clusterview import ClusterView
from melodeon.sched.elastic_rules import open_pools, start
from melodeon.sched.policy import Decision


@dataclass(frozen=True, slots=True, kw_only=True)
class ElasticFifo:
    """The policy."""

    def decide(self, view: ClusterView, state: object) -> Decision:
        """The queue's head while it may start, then everything to those who run."""
        pools, waiting = open_pools(view)
        for job in waiting:
            if not start(pools, job):
                break
        return Decision({job: share for pool in pools.values() for job, share in pool.shares().items()}, state)
