"""The EKS API: the calls that moto lacks or cuts short."""

from __future__ import annotations

from functools import cached_property
from typing import cast

from moto.core.responses import ActionResult
from moto.eks.models import eks_backends
from moto.eks.responses import EKSResponse
from moto.moto_api._internal import mock_random

from gpu_sandbox.aws.access_entries import change_mode, create_entry, set_mode
from gpu_sandbox.aws.eks import Eks, not_found


class EksApi(EKSResponse):
    """As the caller of each sees EKS."""

    @cached_property
    def eks_backend(self) -> Eks:
        """As the call sees it."""
        backend = cast(Eks, eks_backends[self.current_account][self.region])
        return backend.replicas.eks_for(self._get_action(), self.access_key) if backend.replicas else backend

    def create_cluster(self) -> ActionResult:
        answer = super().create_cluster()
        if mode := (self._get_param("accessConfig") or {}).get("authenticationMode"):
            set_mode(self.eks_backend.cluster(self._get_param("name")), mode)
        return answer

    def update_cluster_config(self) -> ActionResult:
        """As moto's, and of the authentication mode, at once."""
        mode = (self._get_param("accessConfig") or {}).get("authenticationMode")
        if not mode:
            return super().update_cluster_config()
        change_mode(self.eks_backend.cluster(self._get_param("name")), mode)
        params = [{"type": "AuthenticationMode", "value": mode}]
        update = {"id": str(mock_random.uuid4()), "status": "Successful", "type": "AccessConfigUpdate"}
        return ActionResult(
            {"update": {**update, "params": params, "createdAt": self.eks_backend.clock.utc_now(), "errors": []}}
        )

    def create_access_entry(self) -> ActionResult:
        cluster = self.eks_backend.cluster(self._get_param("name"))
        groups = self._get_param("kubernetesGroups") or []
        return ActionResult({"accessEntry": create_entry(cluster, self._get_param("principalArn"), groups)})

    def create_nodegroup(self) -> ActionResult:
        text = {
            "cluster_name": "name",
            "nodegroup_name": "nodegroupName",
            "scaling_config": "scalingConfig",
            "subnets": "subnets",
            "instance_types": "instanceTypes",
            "ami_type": "amiType",
            "remote_access": "remoteAccess",
            "node_role": "nodeRole",
            "labels": "labels",
            "taints": "taints",
            "tags": "tags",
            "client_request_token": "clientRequestToken",
            "launch_template": "launchTemplate",
            "capacity_type": "capacityType",
            "version": "version",
            "release_version": "releaseVersion",
            "update_config": "updateConfig",
            "node_repair_config": "nodeRepairConfig",
        }
        fields = {name: self._get_param(param) for name, param in text.items()}
        fields["disk_size"] = self._get_int_param("diskSize")
        return ActionResult({"nodegroup": self.eks_backend.create_nodegroup(**fields)})

    def list_addons(self) -> ActionResult:
        self.eks_backend.cluster(self._get_param("name"))
        return ActionResult({"addons": []})

    def describe_addon(self) -> ActionResult:
        cluster_name, addon = self._get_param("name"), self._get_param("addonName")
        self.eks_backend.cluster(cluster_name)
        raise not_found(f"No addon: {addon} found in cluster: {cluster_name}", cluster_name=cluster_name)

    def update_cluster_version(self) -> ActionResult:
        update = self.eks_backend.update_cluster_version(self._get_param("name"), self._get_param("version"))
        return ActionResult({"update": update.describe()})

    def update_nodegroup_version(self) -> ActionResult:
        fields = {name: self._get_param(name) for name in ("version", "releaseVersion", "launchTemplate")}
        update = self.eks_backend.update_nodegroup_version(
            self._get_param("name"), self._get_param("nodegroupName"), **fields
        )
        return ActionResult({"update": update.describe()})

    def describe_update(self) -> ActionResult:
        update = self.eks_backend.update(
            self._get_param("name"), self._get_param("nodegroupName"), self._get_param("updateId")
        )
        return ActionResult({"update": update.describe()})

    def list_updates(self) -> ActionResult:
        updates = self.eks_backend.updates(self._get_param("name"), self._get_param("nodegroupName"))
        return ActionResult({"updateIds": list(updates)})
