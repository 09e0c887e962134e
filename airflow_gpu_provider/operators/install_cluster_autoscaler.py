"""InstallClusterAutoscalerOperator: cluster-autoscaler in the cluster of an EksGpuPool."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow_gpu_provider.tasks.pool_operator import PoolOperator, given_pool

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_gpu_provider.pools import GpuPool


class InstallClusterAutoscalerOperator(PoolOperator):
    """Apply cluster-autoscaler's manifest to a pool's cluster; `airflow gpu manifest cluster-autoscaler` prints it.

    It finds the groups by the tags that Ensure sets with `scaling="autoscaler"`; one autoscaler serves all pools of the
    cluster. A second run changes what is new, such as its flags, or its image after the cluster's upgrade. It needs an
    IAM role: docs/iam/cluster-autoscaler.json. Whether it runs is checked by Ensure.

    Args:
        gpu_pool: An EksGpuPool of the cluster.
        flags: More flags of cluster-autoscaler, as on its command line, like ["--scale-down-unneeded-time=5m"]; they
            come after --expander=least-waste and --balance-similar-node-groups=true, which they may replace. They are
            not checked. Default none.
        service_account_role_arn: IAM role of its service account (IRSA). Default None: EKS Pod Identity, or the
            permissions of the nodes' role.
        image: An image with its tag or digest. Default: registry.k8s.io's, the release of the cluster's minor version.
            Not taken from default_args.

    Returns:
        dict: `{"deployment", "changes": {object: "created" | "configured" | "unchanged"}}`.

    Raises:
        PoolSpecError: The pool is not on EKS; when the DAG is parsed, if known by then.
        AutoscalerConflict: Another cluster-autoscaler is installed.
    """

    gpu_role = "cluster_autoscaler"
    template_fields: Sequence[str] = ("gpu_pool", "flags", "service_account_role_arn", "image")
    _doing = "installed cluster-autoscaler"
    ui_color = "#d9f2d9"

    def __init__(
        self,
        *,
        gpu_pool: GpuPool,
        flags: Sequence[str] = (),
        service_account_role_arn: str | None = None,
        image: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.gpu_pool = given_pool(gpu_pool)
        self.flags = list(flags)
        self.service_account_role_arn = service_account_role_arn
        self.image = self._by_keyword("image", image, None)  # in default_args it is the training pod's
        if getattr(gpu_pool, "is_rendered", False):
            from airflow_gpu_provider.addons.cluster_autoscaler import check_takes

            check_takes(self.gpu_pool)

    def execute(self, context: Context) -> dict[str, Any]:
        import yaml

        from airflow_gpu_provider.addons.cluster_autoscaler import FULL_NAME, check_no_other, manifest_for
        from airflow_gpu_provider.clouds.base import platform_for
        from airflow_gpu_provider.cluster.api.clock import ServerClock
        from airflow_gpu_provider.cluster.api.rest import server_side_apply

        text = manifest_for(self.gpu_pool, flags=self.flags, image=self.image, role_arn=self.service_account_role_arn)
        api = platform_for(self.gpu_pool).cluster_access().api_client()
        check_no_other(api, ServerClock(api).now())
        changes = {}
        for each in yaml.safe_load_all(text):
            name = f"{each['kind']} {each['metadata']['name']}"
            changes[name] = server_side_apply(api, each)
            self.log.info("%s: %s", name, changes[name])
        return {"deployment": FULL_NAME, "changes": changes}
