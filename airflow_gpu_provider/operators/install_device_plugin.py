"""InstallDevicePluginOperator: nvidia.com/gpu on a pool's nodes, and on no others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow_gpu_provider.errors import GpuError, GpusNotAllocatable, ReferenceNotFound
from airflow_gpu_provider.tasks.links import LINKS
from airflow_gpu_provider.tasks.pool_operator import PoolOperator, duration, given_pool
from airflow_gpu_provider.tasks.telemetry import record_phases

if TYPE_CHECKING:
    from airflow.sdk import Context
    from kubernetes.client import ApiClient

    from airflow_gpu_provider.addons.device_plugin import DevicePlugin
    from airflow_gpu_provider.addons.plugin_watch import GpusWait
    from airflow_gpu_provider.cluster.api.rest import Applied
    from airflow_gpu_provider.pools import GpuPool
    from airflow_gpu_provider.scaling.wait.records import Progress

VERSION = "v0.20.0"
NAMESPACE = "airflow-gpu-device-plugins"
_DEFER_MARGIN = timedelta(minutes=2)

# Most plugins register within this time. A deferral costs the scheduler and the triggerer about as much.
_BLOCK_FIRST = timedelta(seconds=20)


class InstallDevicePluginOperator(PoolOperator):
    """Make sure that a device plugin serves the GPUs of a pool's nodes.

    It checks first: if a device plugin already serves the pool's nodes - a DaemonSet from NVIDIA or eksctl, the GPU
    Operator, GKE, the node image itself - nothing is done. Otherwise NVIDIA's device plugin is applied, for this pool's
    nodes only; with network="efa" so is EFA's. A second run changes nothing. Then it waits until the GPUs are
    allocatable on the existing nodes; with no node yet it is done, and the plugin starts on each node that joins.

    Args:
        gpu_pool: The pool.
        version: Version of NVIDIA's device plugin. Default v0.20.0.
        image: An image with its tag or digest, to use instead of NVIDIA's. Like `container_resources` and `namespace`,
            not taken from default_args, where they are the training's.
        options: The plugin's environment, like {"DP_DISABLE_HEALTHCHECKS": "xids"}.
        config: The plugin's configuration file as a mapping, like {"sharing": {"timeSlicing": {"resources": [{"name":
            "nvidia.com/gpu", "replicas": 4}]}}}; kept in a ConfigMap. Default none.
        driver_image: Image of the driver installer on a GKE pool with driver="daemonset". Default: the one included in
            GKE's node image.
        efa_image: Image of EFA's device plugin on an EKS pool with network="efa", with its tag or digest. Default: that
            of AWS's chart.
        container_resources: Requests and limits of the plugin's container, in Kubernetes' form. Default none.
        namespace: The namespace of all that is installed. Default airflow-gpu-device-plugins, which is created where it
            is missing. Another one has to have pod security `privileged`, and on GKE a ResourceQuota with the scope of
            the PriorityClass system-node-critical.
        timeout: How long to wait for the GPUs. Default 10 minutes.
        deferrable: Wait in the triggerer. Default True.
        dry_run: Log what would be done, change nothing. Default False.

    Returns:
        dict: `{"pool", "served_by", "change": "created" | "configured" | "unchanged", "nodes": {name: GPUs},
        "timeline": [...]}`; the timeline has how long it took until they were allocatable.

    Raises:
        PoolSpecError: `options` or `config` is invalid; the message says why.
        DevicePluginConflict: A DRA driver serves the nodes, or it cannot be determined whether a plugin does.
        GpusNotAllocatable: The GPUs did not become allocatable in time; the message names the node and the reason.
    """

    gpu_role = "device_plugin"
    template_fields: Sequence[str] = ("gpu_pool", "version", "image", "driver_image", "efa_image", "options", "config")
    _doing = "installed the device plugin of {pool}"
    operator_extra_links = LINKS
    ui_color = "#d9f2d9"

    def __init__(
        self,
        *,
        gpu_pool: GpuPool,
        version: str = VERSION,
        image: str | None = None,
        options: Mapping[str, str] | None = None,
        config: Mapping[str, Any] | None = None,
        driver_image: str | None = None,
        efa_image: str | None = None,
        container_resources: Mapping[str, Any] | None = None,
        namespace: str = NAMESPACE,
        timeout: float | timedelta = timedelta(minutes=10),
        deferrable: bool = True,
        dry_run: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.gpu_pool = given_pool(gpu_pool)
        self.version = version
        # In default_args these three are the training pod's.
        self.image = self._by_keyword("image", image, None)
        self.options = dict(options or {})
        self.config = dict(config) if config else None
        self.driver_image = driver_image
        self.efa_image = efa_image
        self.container_resources = self._by_keyword("container_resources", container_resources, None)
        self.namespace = self._by_keyword("namespace", namespace, NAMESPACE)
        self.wait_timeout = duration("timeout", timeout)
        self.deferrable = deferrable
        self.plan_only = dry_run

    def execute(self, context: Context) -> dict[str, Any]:
        from airflow_gpu_provider.scaling.wait.retry import call_with_retries

        result, now = call_with_retries(self._install, within=self.wait_timeout, report=self.log.info)
        return self._finish({**result, "nodes": {}}) if self.plan_only else self._wait(result, now)

    def _install(self) -> tuple[dict[str, Any], datetime]:
        """Apply what is missing, and return the result and the cluster's time; may be repeated."""
        from airflow_gpu_provider.addons.detection import look, served_by
        from airflow_gpu_provider.clouds.base import platform_for
        from airflow_gpu_provider.cluster.api.clock import ServerClock

        api = platform_for(self.gpu_pool).cluster_access().api_client()
        plugin = self._plugin()
        servers, is_installed = look(api, self.gpu_pool)
        server = served_by(self.gpu_pool, servers, ours=is_installed)
        if server is None:
            change = self._apply(api, plugin)
            name = f"device plugin {plugin.namespace}/{plugin.name}"
            self.log.info("%s: %s%s", name, change, " (dry run: nothing is changed)" if self.plan_only else "")
        else:
            change, name = "unchanged", str(server)
            self.log.info("Nothing to do: the nodes of pool %s are served by %s", self.gpu_pool.name, name)
        self._install_driver(api)
        self._install_fabric_plugin(api)
        return {"pool": self.gpu_pool.name, "served_by": name, "change": change}, ServerClock(api).now()

    def _apply(self, api: ApiClient, plugin: DevicePlugin) -> Applied:
        """Apply the plugin's objects, and return the combined result."""
        changes = {self._put(api, each) for each in plugin.manifests()}
        return changes.pop() if len(changes) == 1 else "configured"

    def _put(self, api: ApiClient, manifest: dict[str, Any]) -> Applied:
        """Apply one object, and the package's own namespace before it where that is missing."""
        from airflow_gpu_provider.addons.device_plugin import namespace_manifests
        from airflow_gpu_provider.cluster.api.rest import server_side_apply

        try:
            return server_side_apply(api, manifest, dry_run=self.plan_only)
        except ReferenceNotFound:
            if self.namespace != NAMESPACE:
                raise
        if self.plan_only:
            return "created"
        for each in namespace_manifests():
            server_side_apply(api, each)
        return server_side_apply(api, manifest)

    def _install_fabric_plugin(self, api: ApiClient) -> None:
        from airflow_gpu_provider.addons.detection import look_for_fabric
        from airflow_gpu_provider.addons.device_plugin import fabric_manifest

        fabric = self.gpu_pool.fabric_plugin()
        manifest = fabric_manifest(self.gpu_pool, namespace=self.namespace, image=self.efa_image)
        if fabric is None or manifest is None:
            return
        server = look_for_fabric(api, self.gpu_pool, fabric)
        if server is not None:
            self.log.info("%s interfaces of pool %s are handed out by %s", fabric.fabric, self.gpu_pool.name, server)
            return
        change = self._put(api, manifest)
        self.log.info("%s's device plugin %s: %s", fabric.fabric, manifest["metadata"]["name"], change)

    def _install_driver(self, api: ApiClient) -> None:
        from airflow_gpu_provider.addons.device_plugin import driver_manifest

        manifest = driver_manifest(self.gpu_pool, namespace=self.namespace, image=self.driver_image)
        if manifest:
            change = self._put(api, manifest)
            self.log.info("driver installer %s: %s", manifest["metadata"]["name"], change)

    def _plugin(self) -> DevicePlugin:
        from airflow_gpu_provider.addons.device_plugin import DevicePlugin

        return DevicePlugin(
            pool=self.gpu_pool,
            version=self.version,
            image=self.image,
            options=self.options,
            config=self.config,
            resources=self.container_resources,
            namespace=self.namespace,
        )

    def _wait(self, result: dict[str, Any], now: datetime) -> dict[str, Any]:
        from airflow_gpu_provider.addons.plugin_watch import GpusWait

        server, deadline = result["served_by"], now + self.wait_timeout
        wait = GpusWait(pool=self.gpu_pool.name, server=server, started=now, deadline=deadline)
        progress = self._block(wait, until=now + _BLOCK_FIRST if self.deferrable else None)
        if progress.error:
            raise progress.error
        if not progress.done:
            self._defer(wait, result)
        return self._finish({**result, **(progress.result or {})})

    def _block(self, wait: GpusWait, until: datetime | None) -> Progress:
        from airflow_gpu_provider.addons.plugin_watch import watch_plugin
        from airflow_gpu_provider.scaling.wait.records import Narrator
        from airflow_gpu_provider.scaling.wait.retry import persistently

        watch = partial(watch_plugin, self.gpu_pool, wait, namespace=self.namespace, report=self.log.info, until=until)
        setbacks = Narrator(self.log.warning, started=wait.started)
        return self._stop.run(persistently(watch, until=wait.deadline, narrator=setbacks))

    def _defer(self, wait: GpusWait, result: dict[str, Any]) -> None:
        from airflow_gpu_provider.triggers.device_plugin_ready import GpusTrigger, PluginRecord

        record = PluginRecord(
            pool=self.gpu_pool.serialize(), wait=wait.to_record(), namespace=self.namespace, result=result
        )
        trigger, within = GpusTrigger(record.to_record()), self.wait_timeout + _DEFER_MARGIN
        self._defer_to(trigger, "allocatable GPUs", until=wait.deadline, timeout=within)

    def resume(self, context: Context, event: dict[str, Any]) -> dict[str, Any]:
        """Continue with the trigger's event."""
        if event["status"] != "done":
            raise GpuError.from_record(event["error"])
        return self._finish(event["result"])

    def _resume_without_event(self, error: Exception, context: Context) -> Any:
        raise GpusNotAllocatable(
            f"Pool {self.gpu_pool.name}: the wait in the triggerer ended: {error}.",
            "See the triggerer's log; the next try starts the wait again.",
            pool=self.gpu_pool.name,
        ) from error

    def _finish(self, result: dict[str, Any]) -> dict[str, Any]:
        self._stop.check()
        nodes = ", ".join(f"{name}: {gpus}" for name, gpus in result["nodes"].items())
        self.log.info("Allocatable GPUs of pool %s: %s", self.gpu_pool.name, nodes or "none, it has no node yet")
        record_phases(self, result.get("timeline", ()))
        return result
