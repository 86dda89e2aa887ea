"""Earliest deadline first: each job on as many devices as make it faster, or on what the earlier leave; preemptive."""

from dataclasses import dataclass

from melodeon.core.clusterview import ClusterView
from melodeon.sched.edf_rules import in_order
from melodeon.sched.policy import Decision


@dataclass(frozen=True, slots=True, kw_only=True)
class Edf:
    """The policy, with its option."""

    widest: bool = False
    """Give a job up to the most devices it was measured on, past its best speed too, as ElasticFlow's own code does."""

    def decide(self, view: ClusterView, state: object) -> Decision:
        """In order of deadline, until nothing is left."""
        return Decision(in_order(view, self.widest), state)
