"""Managed node groups: states, updates, health and what EKS refuses, through boto3."""

from __future__ import annotations

from typing import Any

import pytest
from botocore.exceptions import ClientError

from gpu_sandbox.faults import Stockout
from tests.sandbox.aws_account import ACCOUNT_ID, CLUSTER, LAUNCH, TIMINGS, Account


def code(error: pytest.ExceptionInfo[ClientError]) -> str:
    return str(error.value.response["Error"]["Code"])


def text(error: pytest.ExceptionInfo[ClientError]) -> str:
    return str(error.value.response["Error"]["Message"])


def test_cluster_is_active_with_the_given_endpoint_and_authority(account: Account) -> None:
    cluster = account.eks.describe_cluster(name=CLUSTER)["cluster"]

    assert cluster["status"] == "ACTIVE"
    assert cluster["endpoint"] == "https://127.0.0.1:6443"
    assert cluster["certificateAuthority"] == {"data": "Q0E="}
    assert set(cluster["resourcesVpcConfig"]["subnetIds"]) == set(account.network.control_plane_subnets.values())


def test_a_cluster_has_access_entries_once_its_authentication_mode_has_them(account: Account) -> None:
    """CONFIG_MAP is the default of the API (botocore: CreateAccessConfigRequest); docs/iam.md says what to do."""
    entry = {
        "clusterName": CLUSTER,
        "principalArn": f"arn:aws:iam::{ACCOUNT_ID}:role/airflow",
        "kubernetesGroups": ["airflow-gpu-provider"],
    }
    assert account.eks.describe_cluster(name=CLUSTER)["cluster"]["accessConfig"]["authenticationMode"] == "CONFIG_MAP"
    with pytest.raises(ClientError) as refused:
        account.eks.create_access_entry(**entry)
    assert code(refused) == "InvalidRequestException"
    assert "authentication mode must be set to one of [API, API_AND_CONFIG_MAP]" in text(refused)

    both = {"authenticationMode": "API_AND_CONFIG_MAP"}
    assert account.eks.update_cluster_config(name=CLUSTER, accessConfig=both)["update"]["type"] == "AccessConfigUpdate"
    assert account.eks.create_access_entry(**entry)["accessEntry"]["kubernetesGroups"] == ["airflow-gpu-provider"]
    with pytest.raises(ClientError, match="Unsupported authentication mode update"):
        account.eks.update_cluster_config(name=CLUSTER, accessConfig={"authenticationMode": "CONFIG_MAP"})


def test_subnets_lie_in_their_zones(account: Account) -> None:
    subnets = account.ec2.describe_subnets(SubnetIds=list(account.network.subnets.values()))["Subnets"]

    assert {s["AvailabilityZone"]: s["SubnetId"] for s in subnets} == account.network.subnets


def test_a_machine_in_a_subnet_of_the_control_plane_never_joins(account: Account) -> None:
    """Without a way out of the VPC it reaches no endpoint and no registry (EKS user guide, network requirements)."""
    asg = account.node_group(subnets=[account.network.control_plane_subnets["us-west-2a"]])
    (instance,) = account.grow(asg, 1)

    account.advance(TIMINGS.join_timeout - 1)
    assert (account.status(), account.describe()["health"]["issues"]) == ("ACTIVE", [])
    account.advance(1)
    (issue,) = account.describe()["health"]["issues"]
    assert (issue["code"], issue["resourceIds"]) == ("NodeCreationFailure", [instance])
    assert (account.status(), account.events.of("launched")) == ("DEGRADED", [])
    account.node_group("nodes")
    account.grow(account.describe("nodes")["resources"]["autoScalingGroups"][0]["name"], 1)
    assert [launched.nodegroup for launched in account.events.of("launched")] == ["nodes"]


def test_a_machine_whose_kubelet_refuses_a_label_never_joins(account: Account) -> None:
    """EKS's own check lets it pass; the kubelet ends (eksctl-io/eksctl#4006)."""
    asg = account.node_group(labels={"node-role.kubernetes.io/gpu": "true"})
    (instance,) = account.grow(asg, 1)
    account.advance(TIMINGS.join_timeout)
    (issue,) = account.describe()["health"]["issues"]
    assert (issue["code"], issue["resourceIds"]) == ("NodeCreationFailure", [instance])


def test_a_subnet_without_ipv6_addresses_is_refused_in_a_cluster_of_ipv6_pods(account: Account) -> None:
    """By the group's health too: NodegroupIssueCode Ec2SubnetMissingIpv6Assignment."""
    subnet = account.network.subnets["us-west-2a"]
    role = account.eks.delete_cluster(name=CLUSTER)["cluster"]["roleArn"]  # there is one control plane
    account.advance(TIMINGS.cluster_delete)
    account.eks.create_cluster(
        name="six",
        roleArn=role,
        resourcesVpcConfig={"subnetIds": list(account.network.subnets.values())},
        kubernetesNetworkConfig={"ipFamily": "ipv6"},
    )
    account.advance(TIMINGS.cluster_create)

    def made(name: str) -> dict[str, Any]:
        account.eks.create_nodegroup(**account.node_group_request(name, clusterName="six"))
        account.advance(TIMINGS.nodegroup_create)
        described: dict[str, Any] = account.eks.describe_nodegroup(clusterName="six", nodegroupName=name)["nodegroup"]
        return described

    refused = made("without")
    (issue,) = refused["health"]["issues"]
    assert (refused["status"], issue["code"]) == ("CREATE_FAILED", "Ec2SubnetMissingIpv6Assignment")
    account.ec2.modify_subnet_attribute(SubnetId=subnet, AssignIpv6AddressOnCreation={"Value": True})
    assert made("with")["status"] == "ACTIVE"


def test_a_public_subnet_that_gives_no_addresses_is_refused(account: Account) -> None:
    """Not by the call: by the group's health, NodegroupIssueCode Ec2SubnetInvalidConfiguration."""
    public = account.network.public_subnets["us-west-2a"]
    account.eks.create_nodegroup(**account.node_group_request(subnets=[public]))
    account.advance(TIMINGS.nodegroup_create)
    assert account.status() == "CREATE_FAILED"
    (issue,) = account.describe()["health"]["issues"]
    assert (issue["code"], issue["resourceIds"]) == ("Ec2SubnetInvalidConfiguration", [public])

    account.ec2.modify_subnet_attribute(SubnetId=public, MapPublicIpOnLaunch={"Value": True})
    asg = account.node_group("with-addresses", subnets=[public])
    account.grow(asg, 1)
    assert [launched.nodegroup for launched in account.events.of("launched")] == ["with-addresses"]


def test_a_subnet_without_free_addresses(account: Account) -> None:
    subnet = account.ec2.create_subnet(
        VpcId=account.network.vpc_id, CidrBlock="10.64.255.240/28", AvailabilityZone="us-west-2a"
    )["Subnet"]
    assert subnet["AvailableIpAddressCount"] == 11
    for _ in range(11):
        account.ec2.create_network_interface(SubnetId=subnet["SubnetId"])
    asg = account.node_group(subnets=[subnet["SubnetId"]])

    account.resize(asg, 1)
    account.advance(LAUNCH)

    (failed,) = account.failed(asg)
    assert f"There are not enough free addresses in subnet '{subnet['SubnetId']}'" in failed["StatusMessage"]


def test_creation_passes_through_creating_to_active(account: Account) -> None:
    created = account.eks.create_nodegroup(**account.node_group_request())["nodegroup"]

    assert created["status"] == "CREATING"
    assert created["createdAt"].replace(microsecond=0) == account.clock.utc_now().replace(microsecond=0)
    account.advance(TIMINGS.nodegroup_create - 1)
    assert account.status() == "CREATING"
    account.advance(1)
    assert account.status() == "ACTIVE"


def test_the_group_behind_comes_later(account: Account) -> None:
    created = account.eks.create_nodegroup(**account.node_group_request())["nodegroup"]
    assert created.get("resources", {}) == {}

    account.advance(TIMINGS.nodegroup_create / 2 - 1)
    assert account.describe()["resources"] == {}
    account.advance(1)
    assert account.describe()["resources"]["autoScalingGroups"]
    assert account.status() == "CREATING"


def test_creation_with_instances_waits_for_them(account: Account) -> None:
    scaling = {"minSize": 0, "maxSize": 2, "desiredSize": 2}
    asg = account.node_group(scalingConfig=scaling)

    assert len(account.instances(asg)) == 2


def test_the_group_behind_is_eks_own(account: Account) -> None:
    asg = account.node_group()
    group = account.group(asg)
    tags = {tag["Key"]: tag["Value"] for tag in group["Tags"]}

    assert asg.startswith("eks-train-gpu-a-")
    assert tags["eks:cluster-name"] == CLUSTER
    assert tags["eks:nodegroup-name"] == "train-gpu-a"
    assert tags["k8s.io/cluster-autoscaler/enabled"] == "true"
    assert f"k8s.io/cluster-autoscaler/{CLUSTER}" in tags
    assert group["VPCZoneIdentifier"] == account.network.subnets["us-west-2a"]
    assert group["MixedInstancesPolicy"]["LaunchTemplate"]["Overrides"] == [{"InstanceType": "g6.xlarge"}]
    hooks = account.asg.describe_lifecycle_hooks(AutoScalingGroupName=asg)["LifecycleHooks"]
    assert [hook["LifecycleTransition"] for hook in hooks] == ["autoscaling:EC2_INSTANCE_TERMINATING"]


def test_update_has_an_id_and_a_life(account: Account) -> None:
    account.node_group()
    update = account.eks.update_nodegroup_config(
        clusterName=CLUSTER, nodegroupName="train-gpu-a", scalingConfig={"maxSize": 5}
    )["update"]
    find = {"name": CLUSTER, "nodegroupName": "train-gpu-a", "updateId": update["id"]}

    assert update["status"] == "InProgress"
    assert update["params"] == [{"type": "MaxSize", "value": "5"}]
    assert account.eks.list_updates(name=CLUSTER, nodegroupName="train-gpu-a")["updateIds"] == [update["id"]]
    account.advance(TIMINGS.nodegroup_update - 1)
    assert (account.eks.describe_update(**find)["update"]["status"], account.status()) == ("InProgress", "UPDATING")
    account.advance(1)
    assert (account.eks.describe_update(**find)["update"]["status"], account.status()) == ("Successful", "ACTIVE")
    assert account.describe()["scalingConfig"] == {"minSize": 0, "maxSize": 5, "desiredSize": 0}


def test_unknown_update_is_not_found(account: Account) -> None:
    account.node_group()
    with pytest.raises(ClientError) as error:
        account.eks.describe_update(name=CLUSTER, nodegroupName="train-gpu-a", updateId="nope")
    assert code(error) == "ResourceNotFoundException"


def test_a_second_update_at_once_is_refused(account: Account) -> None:
    account.node_group()
    change = {"clusterName": CLUSTER, "nodegroupName": "train-gpu-a"}
    account.eks.update_nodegroup_config(**change, scalingConfig={"maxSize": 4})
    with pytest.raises(ClientError) as error:
        account.eks.update_nodegroup_config(**change, scalingConfig={"maxSize": 5})
    assert code(error) == "ResourceInUseException"
    assert "currently not in Active State" in text(error)
    with pytest.raises(ClientError) as error:
        account.eks.delete_nodegroup(**change)
    assert code(error) == "ResourceInUseException"


def test_setting_the_size_on_the_group_behind_shows_on_the_node_group(account: Account) -> None:
    asg = account.node_group()
    account.grow(asg, 2)

    assert account.describe()["scalingConfig"]["desiredSize"] == 2


def test_setting_the_size_on_the_node_group_launches(account: Account) -> None:
    asg = account.node_group()
    account.eks.update_nodegroup_config(
        clusterName=CLUSTER, nodegroupName="train-gpu-a", scalingConfig={"desiredSize": 1}
    )
    account.advance(LAUNCH)

    assert len(account.instances(asg)) == 1


def test_labels_and_taints_reach_the_nodes_launched_later(account: Account) -> None:
    asg = account.node_group(
        labels={"role": "train", "old": "x"},
        taints=[{"key": "nvidia.com/gpu", "value": "true", "effect": "NO_SCHEDULE"}],
    )
    account.eks.update_nodegroup_config(
        clusterName=CLUSTER,
        nodegroupName="train-gpu-a",
        labels={"addOrUpdateLabels": {"role": "nightly"}, "removeLabels": ["old"]},
        taints={"addOrUpdateTaints": [{"key": "team", "value": "ml", "effect": "NO_EXECUTE"}]},
    )
    account.grow(asg, 1)

    (node,) = account.events.of("launched")
    assert node.labels["role"] == "nightly"
    assert "old" not in node.labels
    assert node.labels["eks.amazonaws.com/nodegroup"] == "train-gpu-a"
    assert node.labels["eks.amazonaws.com/capacityType"] == "ON_DEMAND"
    assert node.labels["topology.kubernetes.io/zone"] == node.zone == "us-west-2a"
    assert node.labels["node.kubernetes.io/instance-type"] == node.instance_type == "g6.xlarge"
    assert node.private_dns_name == f"ip-{node.private_ip.replace('.', '-')}.us-west-2.compute.internal"
    assert {(t.key, t.value, t.effect) for t in node.taints} == {
        ("nvidia.com/gpu", "true", "NoSchedule"),
        ("team", "ml", "NoExecute"),
    }
    assert (node.cluster_name, node.nodegroup, node.asg_name) == (CLUSTER, "train-gpu-a", asg)


def test_deletion_stays_visible_until_the_instances_are_gone(account: Account) -> None:
    account.events.drains_at_once = False
    asg = account.node_group()
    (instance,) = account.grow(asg, 1)

    account.eks.delete_nodegroup(clusterName=CLUSTER, nodegroupName="train-gpu-a")
    assert account.status() == "DELETING"
    account.advance(TIMINGS.asg_reaction)
    assert account.events.kinds() == ["launched", "drain"]
    account.advance(TIMINGS.nodegroup_delete)
    assert account.status() == "DELETING"
    with pytest.raises(ClientError) as error:
        account.eks.create_nodegroup(**account.node_group_request())
    assert code(error) == "ResourceInUseException"

    account.cloud.complete_drain(instance)
    account.advance(TIMINGS.terminate)
    assert account.eks.list_nodegroups(clusterName=CLUSTER)["nodegroups"] == []
    with pytest.raises(ClientError) as error:
        account.status()
    assert code(error) == "ResourceNotFoundException"
    assert account.asg.describe_auto_scaling_groups()["AutoScalingGroups"] == []
    assert account.ec2_state(instance) == "terminated"


def test_deletion_while_creating_leaves_nothing(account: Account) -> None:
    account.faults.add(Stockout())
    scaling = {"minSize": 0, "maxSize": 2, "desiredSize": 2}
    account.eks.create_nodegroup(**account.node_group_request(scalingConfig=scaling))

    account.eks.delete_nodegroup(clusterName=CLUSTER, nodegroupName="train-gpu-a")
    account.advance(TIMINGS.nodegroup_delete - 1)
    assert account.status() == "DELETING"
    account.advance(1)
    assert account.eks.list_nodegroups(clusterName=CLUSTER)["nodegroups"] == []
    assert account.asg.describe_auto_scaling_groups()["AutoScalingGroups"] == []


def test_creation_without_capacity_fails_and_says_why(account: Account) -> None:
    account.faults.add(Stockout(zone="us-west-2a"))
    scaling = {"minSize": 0, "maxSize": 2, "desiredSize": 2}
    account.eks.create_nodegroup(**account.node_group_request(scalingConfig=scaling))
    account.advance(TIMINGS.nodegroup_create_timeout - 1)
    assert account.status() == "CREATING"
    account.advance(1)
    assert account.status() == "CREATE_FAILED"

    issues = {issue["code"]: issue for issue in account.describe()["health"]["issues"]}
    launch = issues["AsgInstanceLaunchFailures"]
    assert "InsufficientInstanceCapacity" in launch["message"]
    assert launch["resourceIds"] == [account.describe()["resources"]["autoScalingGroups"][0]["name"]]
    assert len(issues["NodeCreationFailure"]["resourceIds"]) == 2


def test_a_failed_launch_degrades_until_one_succeeds(account: Account) -> None:
    """Scaling to zero does not heal it (containers-roadmap#2326), and until then nothing is updated (#2204)."""
    asg = account.node_group()
    shortage = Stockout(zone="us-west-2a", instance_type="g6.xlarge", market="on-demand")
    account.faults.add(shortage)
    account.resize(asg, 1)
    account.advance(TIMINGS.asg_reaction)
    assert account.status() == "DEGRADED"
    (issue,) = account.describe()["health"]["issues"]
    assert issue["code"] == "AsgInstanceLaunchFailures"
    assert "sufficient g6.xlarge capacity" in issue["message"]

    account.resize(asg, 0)
    account.faults.remove(shortage)
    account.advance(hours=1)
    assert account.status() == "DEGRADED"
    with pytest.raises(ClientError) as refused:
        account.eks.update_nodegroup_config(
            clusterName=CLUSTER, nodegroupName="train-gpu-a", labels={"addOrUpdateLabels": {"a": "b"}}
        )
    assert (code(refused), text(refused)) == (
        "ResourceInUseException",
        "Nodegroup cannot be updated as it is currently not in Active State",
    )

    account.grow(asg, 1)
    assert (account.status(), account.describe()["health"]["issues"]) == ("ACTIVE", [])


def test_a_group_whose_own_group_was_deleted_is_degraded(account: Account) -> None:
    asg = account.node_group()
    account.asg.delete_auto_scaling_group(AutoScalingGroupName=asg)
    account.advance()

    assert account.status() == "DEGRADED"
    assert account.describe()["health"]["issues"][0]["code"] == "AutoScalingGroupNotFound"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"scalingConfig": {"minSize": 0, "maxSize": 0, "desiredSize": 0}}, "maxSize"),
        ({"scalingConfig": {"minSize": 2, "maxSize": 1, "desiredSize": 2}}, "2"),
        ({"scalingConfig": {"minSize": 0, "maxSize": 1, "desiredSize": 2}}, "max size"),
        ({"scalingConfig": {"minSize": 2, "maxSize": 3, "desiredSize": 1}}, "Minimum capacity 2"),
        ({"instanceTypes": ["g6.tiny"]}, "g6.tiny"),
        ({"subnets": ["subnet-00000000"]}, "subnet-00000000"),
        ({"amiType": "AL2023_X86_64_NVIDIA"}, "amiType"),
        ({"capacityType": "PREEMPTIBLE"}, "capacityType"),
        ({"capacityType": "CAPACITY_BLOCK"}, "launch template"),
        ({"labels": {"bad key!": "x"}}, "bad key!"),
        ({"labels": {"role": "not a value"}}, "role"),
        ({"labels": {"eks.amazonaws.com/mine": "x"}}, "reserved"),
        ({"taints": [{"key": "gpu", "value": "true", "effect": "NoSchedule"}]}, "NoSchedule"),
        ({"nodegroupName": "ends in space "}, "name"),
        ({"diskSize": 0}, "diskSize"),
        ({"updateConfig": {"maxUnavailable": 9}}, "max-unavailable"),
        ({"amiType": "AL2023_ARM_64_NVIDIA"}, "not a valid instance type"),
        ({"amiType": "AL2_x86_64_GPU"}, "AL2_x86_64_GPU is only supported for kubernetes versions 1.32 or earlier"),
        ({"nodeRole": f"arn:aws:iam::{ACCOUNT_ID}:role/nope"}, "role with name nope"),
        ({"nodeRole": f"arn:aws:iam::{ACCOUNT_ID}:role/{CLUSTER}-cluster"}, "service principals"),
    ],
)
def test_creation_refuses_what_eks_refuses(account: Account, change: dict[str, Any], said: str) -> None:
    with pytest.raises(ClientError) as error:
        account.client("eks", checked=False).create_nodegroup(**account.node_group_request(**change))
    assert code(error) == "InvalidParameterException"
    assert said in text(error)
    assert account.eks.list_nodegroups(clusterName=CLUSTER)["nodegroups"] == []


@pytest.mark.parametrize(
    "change",
    [
        {"scalingConfig": {"maxSize": 0}},
        {"scalingConfig": {"minSize": 2}},
        {"scalingConfig": {"desiredSize": 9}},
        {"taints": {"addOrUpdateTaints": [{"key": "gpu", "effect": "NoSchedule"}]}},
        {"labels": {"addOrUpdateLabels": {"role": "not a value"}}},
        {"updateConfig": {"maxUnavailable": 9}},
    ],
)
def test_updates_refuse_what_eks_refuses(account: Account, change: dict[str, Any]) -> None:
    account.node_group()
    with pytest.raises(ClientError) as error:
        account.client("eks", checked=False).update_nodegroup_config(
            clusterName=CLUSTER, nodegroupName="train-gpu-a", **change
        )
    assert code(error) == "InvalidParameterException"
    assert account.status() == "ACTIVE"


def test_a_name_is_taken_once(account: Account) -> None:
    account.node_group()
    with pytest.raises(ClientError) as error:
        account.eks.create_nodegroup(**account.node_group_request())
    assert code(error) == "ResourceInUseException"
    assert text(error) == f"NodeGroup already exists with name train-gpu-a and cluster name {CLUSTER}"


def test_unknown_names_are_not_found(account: Account) -> None:
    calls = [
        lambda: account.eks.describe_cluster(name="nope"),
        lambda: account.eks.list_nodegroups(clusterName="nope"),
        lambda: account.eks.describe_nodegroup(clusterName="nope", nodegroupName="nope"),
        lambda: account.eks.describe_nodegroup(clusterName=CLUSTER, nodegroupName="nope"),
        lambda: account.eks.delete_nodegroup(clusterName=CLUSTER, nodegroupName="nope"),
        lambda: account.eks.update_nodegroup_config(clusterName=CLUSTER, nodegroupName="nope"),
        lambda: account.eks.create_nodegroup(**account.node_group_request(clusterName="nope")),
    ]
    for call in calls:
        with pytest.raises(ClientError) as error:
            call()
        assert code(error) == "ResourceNotFoundException"


def test_launch_template_takes_over_disk_and_types(account: Account) -> None:
    template = account.ec2.create_launch_template(
        LaunchTemplateName="mine", LaunchTemplateData={"InstanceType": "g6.2xlarge"}
    )["LaunchTemplate"]
    request = account.node_group_request(launchTemplate={"id": template["LaunchTemplateId"]}, diskSize=100)
    with pytest.raises(ClientError) as error:
        account.eks.create_nodegroup(**request)
    assert code(error) == "InvalidParameterException"
    assert "launch template" in text(error)

    del request["diskSize"], request["instanceTypes"]
    account.eks.create_nodegroup(**request)
    account.advance(TIMINGS.nodegroup_create)
    account.grow(account.describe()["resources"]["autoScalingGroups"][0]["name"], 1)
    (node,) = account.events.of("launched")
    assert node.instance_type == "g6.2xlarge"


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"IamInstanceProfile": {"Name": "nodes"}}, "IamInstanceProfile"),
        ({"InstanceMarketOptions": {"MarketType": "spot"}}, "RequestSpotInstances"),
        ({"HibernationOptions": {"Configured": True}}, "HibernationOptions"),
        ({"NetworkInterfaces": [{"DeviceIndex": 0, "SubnetId": "subnet-1"}]}, "SubnetId"),
    ],
)
def test_what_a_template_of_a_node_group_may_not_have(account: Account, data: dict[str, Any], said: str) -> None:
    account.ec2.create_launch_template(LaunchTemplateName="mine", LaunchTemplateData=data)
    with pytest.raises(ClientError, match=f"The launch template can't include {said}"):
        account.eks.create_nodegroup(**account.node_group_request(launchTemplate={"name": "mine"}))


@pytest.mark.parametrize("version", ["0", "3", "third", "$Newest"])
def test_a_version_that_a_template_does_not_have(account: Account, version: str) -> None:
    account.ec2.create_launch_template(LaunchTemplateName="mine", LaunchTemplateData={"UserData": ""})
    with pytest.raises(ClientError) as error:
        account.ec2.describe_launch_template_versions(LaunchTemplateName="mine", Versions=[version])
    assert code(error) == "InvalidLaunchTemplateId.VersionNotFound"
    with pytest.raises(ClientError) as error:
        account.eks.create_nodegroup(**account.node_group_request(launchTemplate={"name": "mine", "version": version}))
    assert code(error) == "InvalidParameterException"


@pytest.mark.parametrize(
    ("asked", "number"), [({}, "1"), ({"version": "$Default"}, "1"), ({"version": "$Latest"}, "2")]
)
def test_a_group_keeps_the_version_that_a_word_meant(account: Account, asked: dict[str, str], number: str) -> None:
    """terraform-provider-aws, aws_eks_node_group: the API converts $Default and $Latest to the number on read."""
    account.ec2.create_launch_template(LaunchTemplateName="mine", LaunchTemplateData={"UserData": ""})
    account.ec2.create_launch_template_version(LaunchTemplateName="mine", LaunchTemplateData={"UserData": ""})
    account.node_group(launchTemplate={"name": "mine", **asked})
    account.ec2.create_launch_template_version(LaunchTemplateName="mine", LaunchTemplateData={"UserData": ""})
    template = account.describe()["launchTemplate"]
    assert (template["name"], template["version"]) == ("mine", number)


@pytest.mark.parametrize(
    ("ami_type", "asked", "gib"),
    [
        ("AL2023_x86_64_NVIDIA", {"diskSize": 100}, 100),
        ("AL2023_x86_64_NVIDIA", {}, 20),
        ("AL2023_x86_64_NVIDIA", {"/dev/xvda": 200}, 200),
        ("BOTTLEROCKET_x86_64_NVIDIA", {"diskSize": 100}, 20),
        ("BOTTLEROCKET_x86_64_NVIDIA", {"/dev/xvda": 200}, 20),
        ("BOTTLEROCKET_x86_64_NVIDIA", {"/dev/xvdb": 200}, 200),
    ],
)
def test_images_are_on_the_root_volume_but_for_bottlerocket(
    account: Account, ami_type: str, asked: dict[str, int], gib: int
) -> None:
    """EKS gives diskSize to the root device; Bottlerocket has its system there (eksctl-io/eksctl#2776)."""
    volumes = [{"DeviceName": name, "Ebs": {"VolumeSize": size}} for name, size in asked.items() if "/" in name]
    request: dict[str, Any] = {"amiType": ami_type, **({} if volumes else asked)}
    if volumes:
        data = {"BlockDeviceMappings": volumes}
        account.ec2.create_launch_template(LaunchTemplateName="disks", LaunchTemplateData=data)
        request["launchTemplate"] = {"name": "disks"}
    account.grow(account.node_group(**request), 1)
    assert [instance.disk_gib for instance in account.events.of("launched")] == [gib]


def test_tags_of_groups_and_clusters(account: Account) -> None:
    account.node_group(tags={"owner": "ml"})
    arn = account.describe()["nodegroupArn"]
    account.eks.tag_resource(resourceArn=arn, tags={"airflow-gpu-provider/spec": "abc"})
    account.eks.untag_resource(resourceArn=arn, tagKeys=["owner"])

    assert account.describe()["tags"] == {"airflow-gpu-provider/spec": "abc"}
    assert account.eks.list_tags_for_resource(resourceArn=arn)["tags"] == {"airflow-gpu-provider/spec": "abc"}
    cluster = account.eks.describe_cluster(name=CLUSTER)["cluster"]["arn"]
    account.eks.tag_resource(resourceArn=cluster, tags={"a": "b"})
    assert account.eks.describe_cluster(name=CLUSTER)["cluster"]["tags"] == {"a": "b"}


def test_airflows_hook_sees_the_group(account: Account, monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow.providers.amazon.aws.hooks.eks import EksHook, NodegroupStates

    for name, value in account.cloud.env().items():
        monkeypatch.setenv(name, value)
    account.node_group()
    hook = EksHook(aws_conn_id=None, region_name="us-west-2")

    assert hook.get_nodegroup_state(clusterName=CLUSTER, nodegroupName="train-gpu-a") is NodegroupStates.ACTIVE
    assert hook.list_nodegroups(clusterName=CLUSTER) == ["train-gpu-a"]
