"""How many devices to set aside for node failures.

Nodes fail independently and are repaired in a known mean time, so the number of nodes down at one moment is binomial;
the reserve is the smallest number of nodes that is exceeded with at most the given probability.
"""

from math import comb

from melodeon.core.cluster import Cluster, DeviceType
from melodeon.core.errors import UsageError


def reserve_for(
    cluster: Cluster, kind: DeviceType, *, mean_up_s: float, mean_repair_s: float, risk: float = 0.01
) -> int:
    """Devices of one type that admission should leave unpromised."""
    if mean_up_s <= 0 or mean_repair_s < 0 or not 0 < risk < 1:
        raise UsageError(
            f"mean_up_s={mean_up_s}, mean_repair_s={mean_repair_s}, risk={risk}: times must be positive and the risk "
            "between 0 and 1"
        )
    sizes = sorted((node.num_devices for node in cluster.nodes if node.device_type == kind), reverse=True)
    down = mean_repair_s / (mean_up_s + mean_repair_s)
    covered = 0.0
    for failed in range(len(sizes) + 1):
        covered += comb(len(sizes), failed) * down**failed * (1 - down) ** (len(sizes) - failed)
        if covered >= 1 - risk:
            # The largest nodes, since nobody knows which will fail.
            return sum(sizes[:failed])
    return sum(sizes)
