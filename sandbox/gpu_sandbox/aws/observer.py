"""The sandbox's own look at its AWS: clients with its credentials, whose reads are never stale."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import boto3

if TYPE_CHECKING:
    from gpu_sandbox.aws.cloud import AwsCloud


def instances(aws: AwsCloud) -> list[dict[str, Any]]:
    """All EC2 instances that AWS still shows, the terminated ones too."""
    reservations = aws_client(aws, "ec2").describe_instances()["Reservations"]
    return [instance for reservation in reservations for instance in reservation["Instances"]]


def aws_client(aws: AwsCloud, service: str) -> Any:
    """A boto3 client with the sandbox's own credentials, whose reads are never old; thread-safe."""
    key = aws.observer
    return _client(service, aws.endpoint_url, aws.region, key.access_key_id, key.secret_access_key)


@functools.cache
def _client(service: str, endpoint_url: str, region: str, key_id: str, secret: str) -> Any:
    session = boto3.Session(aws_access_key_id=key_id, aws_secret_access_key=secret, region_name=region)
    return session.client(service, endpoint_url=endpoint_url)
