"""Google Cloud for one sandbox: the GKE and Compute Engine calls that a GPU pool's life takes, on loopback.

How a client gets here, which is how it would get to a private or regional endpoint of Google's own:

- Endpoints. The extra of the Airflow connection (`google_cloud_default`) may name `gke_endpoint`, `compute_endpoint`,
  `resource_manager_endpoint` and `billing_endpoint`; a client takes them as `client_options.api_endpoint` and the
  clients' REST transport:

      ClusterManagerClient(credentials=..., transport="rest", client_options={"api_endpoint": gke_endpoint})
      InstanceGroupManagersClient(credentials=..., client_options={"api_endpoint": compute_endpoint})

  Without them the clients go to Google's own. Here all are the same plain `http://127.0.0.1:PORT`; the scheme is
  part of the value, which the REST transports honour. (gRPC would need TLS, an own root certificate in every
  process' environment, and threads that do not survive Airflow's forks.)
- Credentials. `keyfile_dict` of a service account with a throw-away key, whose `token_uri` is here too. The API takes
  the access tokens issued there and, as Google does, JWTs that the key has signed itself.
- The cluster. `get_cluster` says `endpoint` ("127.0.0.1:PORT", https) and `master_auth.cluster_ca_certificate`; the
  API server takes the same access tokens as bearer tokens.

Instance groups: a node pool's `instance_group_urls` have the form
`https://www.googleapis.com/compute/v1/projects/P/zones/Z/instanceGroupManagers/NAME`, one for each zone.
"""

from gpu_sandbox.google.cloud import GoogleCloud
from gpu_sandbox.google.interface import (
    GoogleTimings,
    Identity,
    Instance,
    KubernetesUser,
    ScalableGroup,
    Taint,
)
from gpu_sandbox.google.permissions import PermissionUse

__all__ = [
    "GoogleCloud",
    "GoogleTimings",
    "Identity",
    "Instance",
    "KubernetesUser",
    "PermissionUse",
    "ScalableGroup",
    "Taint",
]
