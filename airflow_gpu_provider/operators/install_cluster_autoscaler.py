"""InstallClusterAutoscalerOperator: cluster-autoscaler in the cluster of an EksGpuPool."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import timedelta
from time import monotonic
from typing import TYPE_CHECKING, Any, cast

from airflow_gpu_provider.cluster.threads import in_thread
from airflow_gpu_provider.errors import AutoscalerNotRunning
from airflow_gpu_provider.tasks.pool_operator import PoolOperator, duration, given_pool

if TYPE_CHECKING:
    from airflow.sdk import Context
    from kubernetes.client import ApiClient

    from airflow_gpu_provider.addons.cluster_autoscaler import ClusterAutoscaler
    from airflow_gpu_provider.cluster.clock import Clock
    from airflow_gpu_provider.pools import EksGpuPool, GpuPool

_EVERY = 2.0


class InstallClusterAutoscalerOperator(PoolOperator):
    """Install cluster-autoscaler in a pool's cluster, or update the options of the one that it installed.

    It finds the groups by the tags that Ensure sets with `scaling="autoscaler"`; one autoscaler serves all pools of the
    cluster. A second run changes nothing. It needs an IAM role: docs/iam/cluster-autoscaler.json.

    Args:
        gpu_pool: An EksGpuPool of the cluster.
        options: cluster-autoscaler's flags without the dashes in front, like {"scale-down-unneeded-time": "5m"}; a
            bool, number, timedelta or list of them is written in its command-line form. Default: expander
            "least-waste", balance-similar-node-groups. With expander "priority" the pool's own order applies.
        service_account_role_arn: IAM role of its service account (IRSA). Default None: EKS Pod Identity, or the
            permissions of the nodes' role.
        version: Tag of the image. Default: the release of the cluster's minor version, so that a run after the
            cluster's upgrade brings the autoscaler along. With render_only v1.36.1.
        image: An image with its tag or digest, to use instead of registry.k8s.io's. Not taken from default_args.
        render_only: Return the manifests as YAML, and call nothing. Default False.
        timeout: How long it may take to run and report. Default 5 minutes.

    Returns:
        `{"deployment", "changes": {object: "created" | "configured" | "unchanged"}}`; the YAML with `render_only`.

    Raises:
        PoolSpecError: The pool is not on EKS, or an option is invalid; when the DAG is parsed, if known by then. Or the
            image is of 1.35 or later, and the cluster's Kubernetes of 1.33 or earlier.
        AutoscalerConflict: Another cluster-autoscaler is installed.
        AutoscalerNotRunning: It does not run, or does not report, in time.
    """

    gpu_role = "cluster_autoscaler"
    template_fields: Sequence[str] = ("gpu_pool", "options", "service_account_role_arn", "version", "image")
    _doing = "installed cluster-autoscaler"
    ui_color = "#d9f2d9"

    def __init__(
        self,
        *,
        gpu_pool: GpuPool,
        options: Mapping[str, Any] | None = None,
        service_account_role_arn: str | None = None,
        version: str | None = None,
        image: str | None = None,
        render_only: bool = False,
        timeout: float | timedelta = timedelta(minutes=5),
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.gpu_pool = given_pool(self.task_id, gpu_pool)
        self.options = dict(options or {})
        self.service_account_role_arn = service_account_role_arn
        self.version = version
        self.image = self._by_keyword("image", image, None)  # in default_args it is the training pod's
        self.render_only = render_only
        self.wait_timeout = duration(self.task_id, "timeout", timeout)
        if getattr(gpu_pool, "is_rendered", False):
            self._autoscaler()

    def execute(self, context: Context) -> dict[str, Any] | str:
        from airflow_gpu_provider.addons.cluster_autoscaler import check_no_other
        from airflow_gpu_provider.cluster.clock import ServerClock
        from airflow_gpu_provider.cluster.rest import server_side_apply
        from airflow_gpu_provider.platforms.base import platform_for

        if self.render_only:
            import yaml

            return yaml.safe_dump_all(self._autoscaler().manifests(), sort_keys=False)
        autoscaler = self._autoscaler(self._kubernetes())
        manifests = autoscaler.manifests()
        api = platform_for(self.gpu_pool).cluster_access().api_client()
        clock = ServerClock(api)
        check_no_other(api, clock.now())
        changes = {}
        for manifest in manifests:
            name = f"{manifest['kind']} {manifest['metadata']['name']}"
            # An expander order written by somebody else is not overwritten.
            changes[name] = server_side_apply(api, manifest, force=manifest["kind"] != "ConfigMap")
            self.log.info("%s: %s", name, changes[name])
        deployment = self._stop.run(self._running(api, clock, autoscaler))
        self._stop.check()
        self.log.info("cluster-autoscaler runs and reports: Deployment %s", deployment)
        return {"deployment": deployment, "changes": changes}

    def _kubernetes(self) -> str:
        """Return the version of the pool's cluster, like "1.36"."""
        from airflow_gpu_provider.platforms.aws.cluster import EksCluster

        return str(EksCluster(cast("EksGpuPool", self.gpu_pool)).description["version"])

    def _autoscaler(self, kubernetes: str | None = None) -> ClusterAutoscaler:
        from airflow_gpu_provider.addons.cluster_autoscaler import ClusterAutoscaler

        return ClusterAutoscaler(
            pool=self.gpu_pool,
            kubernetes=kubernetes,
            options=self.options,
            version=self.version,
            image=self.image,
            service_account_role_arn=self.service_account_role_arn,
        )

    async def _running(self, api: ApiClient, clock: Clock, autoscaler: ClusterAutoscaler) -> str:
        """Wait until the Deployment is available and the autoscaler reports; return the Deployment's name."""
        from airflow_gpu_provider.addons.cluster_autoscaler import FULL_NAME, what_is_missing

        deadline = monotonic() + self.wait_timeout.total_seconds()
        logged = ""
        while missing := await in_thread(lambda: what_is_missing(api, clock.now())):
            if monotonic() >= deadline:
                raise AutoscalerNotRunning(
                    f"cluster-autoscaler ({autoscaler.whole_image}, in Kubernetes {autoscaler.kubernetes}) does not run"
                    f" after {self.wait_timeout}: {missing}.",
                    "See kubectl -n kube-system logs deployment/cluster-autoscaler. The image has to be of the"
                    " cluster's minor version, and its IAM role to allow what docs/iam/cluster-autoscaler.json lists.",
                    pool=self.gpu_pool.name,
                    image=autoscaler.whole_image,
                    kubernetes=autoscaler.kubernetes,
                )
            if missing != logged:
                self.log.info("waiting: %s", missing)
                logged = missing
            await asyncio.sleep(_EVERY)
        return FULL_NAME
