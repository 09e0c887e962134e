"""Network interfaces: those of a machine's launch template, and which of them go with it."""

from __future__ import annotations

from typing import Any

from tests.sandbox.aws_account import END, LAUNCH, Account

ZONE = "us-west-2a"


def interfaces(account: Account) -> list[tuple[str, int]]:
    """Those of machines, the ended ones too: their kind, and how many addresses they have."""
    found = account.ec2.describe_network_interfaces()["NetworkInterfaces"]
    return [(each["InterfaceType"], len(each["PrivateIpAddresses"])) for each in found if each.get("Attachment")]


def launched_and_ended(account: Account, **data: Any) -> tuple[list[tuple[str, int]], list[tuple[str, int]]]:
    """Of one machine while it runs, and after its end."""
    data = {"ImageId": "ami-12345678", "InstanceType": "p4d.24xlarge", **data}
    account.ec2.create_launch_template(LaunchTemplateName="own", LaunchTemplateData=data)
    account.asg.create_auto_scaling_group(
        AutoScalingGroupName="own",
        MinSize=0,
        MaxSize=1,
        LaunchTemplate={"LaunchTemplateName": "own"},
        VPCZoneIdentifier=account.network.subnets[ZONE],
    )
    account.resize("own", 1)
    account.advance(LAUNCH)
    running = interfaces(account)
    account.resize("own", 0)
    account.advance(END)
    return running, interfaces(account)


def test_one_that_nobody_asked_for_goes_with_its_machine(account: Account) -> None:
    assert launched_and_ended(account) == ([("interface", 1)], [])


def test_those_of_a_template_go_where_it_says_so(account: Account) -> None:
    wanted = [
        {"NetworkCardIndex": 0, "DeviceIndex": 0, "InterfaceType": "interface", "DeleteOnTermination": True},
        {"NetworkCardIndex": 1, "DeviceIndex": 1, "InterfaceType": "efa-only", "DeleteOnTermination": True},
        {"NetworkCardIndex": 2, "DeviceIndex": 1, "InterfaceType": "efa-only"},
    ]
    running, left = launched_and_ended(account, NetworkInterfaces=wanted)
    assert running == [("interface", 1), ("efa-only", 0), ("efa-only", 0)]
    assert left == [("efa-only", 0)]


def test_no_machine_has_the_address_of_one_that_has_just_ended(account: Account) -> None:
    names = []
    launched_and_ended(account)
    for _ in range(2):
        account.resize("own", 1)
        account.advance(LAUNCH)
        names += [node.private_dns_name for node in account.events.of("launched")[-1:]]
        account.resize("own", 0)
        account.advance(END)
    assert len(set(names)) == 2
