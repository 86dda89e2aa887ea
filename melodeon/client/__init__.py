"""The typed HTTP client: what the CLI and other programs speak to the cluster with. Needs neither torch nor the server.

from melodeon.client import Cluster
cluster = Cluster()                       # finds the service that you started; or Cluster(url, token)
job = cluster.submit({"name": "cnn", "run": "train.py", "steps": 1000, "deadline": "6h"}).job
for text in cluster.follow_logs(job.id):
    print(text, end="")
"""

from melodeon.client.cluster import Cluster

__all__ = ["Cluster"]
