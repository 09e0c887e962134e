"""Releases of EKS's node images: which there are, and how Parameter Store tells the newest of each kind.

The names of the parameters are of EKS's user guide ("Retrieve recommended Amazon Linux AMI IDs", "Retrieve recommended
Bottlerocket AMI IDs"); that their sub-parameters release_version and image_version are what node groups have as
releaseVersion, eksctl and the Terraform modules for EKS rely on.
"""

from __future__ import annotations

from datetime import UTC, datetime
from zlib import crc32

from moto.core.responses import ActionResult
from moto.ssm.responses import SimpleSystemManagerResponse

from gpu_sandbox.aws.node_group_rules import AMI_TYPES

FIRST = "20260101"


class NodeReleases:
    """The images that EKS has released so far, each day for all kinds and all versions of Kubernetes."""

    def __init__(self) -> None:
        self._days = [FIRST]
        self._broken: set[int] = set()

    def publish(self, day: str, *, broken: bool = False) -> None:
        """Release images, on a day like "20260827"; of broken ones no GPU is ever allocatable.

        As of v20250224, v20260423 and v20260818 (awslabs/amazon-eks-ami#2165, #2706, #2790).
        """
        if broken:
            self._broken.add(len(self._days))
        self._days.append(day)

    def is_broken(self, ami_type: str, version: str, release: str) -> bool:
        return release in [self._release(ami_type, version, number) for number in self._broken]

    def newest(self, ami_type: str, version: str) -> str:
        """Return the release of that kind of image for Kubernetes `version`, like "1.36"."""
        return self._release(ami_type, version, len(self._days) - 1)

    def has(self, ami_type: str, version: str, release: str) -> bool:
        return release in [self._release(ami_type, version, number) for number in range(len(self._days))]

    def parameter(self, name: str, version: str = "") -> tuple[str, int, datetime] | None:
        """Return a public parameter's value, its version and when that came; None if it is none of a newest release.

        Each release is a version of it, and an earlier one is had by its number ("Working with parameter versions").
        """
        number = int(version or len(self._days))
        for ami_type in AMI_TYPES:
            before, after = _parameter_name(ami_type)
            of = name.removeprefix(before).removesuffix(after)
            if name == f"{before}{of}{after}" and of.count(".") == 1 and "/" not in of and number <= len(self._days):
                day = datetime.strptime(self._days[number - 1], "%Y%m%d").replace(tzinfo=UTC)
                return self._release(ami_type, of, number - 1), number, day
        return None

    def _release(self, ami_type: str, version: str, number: int) -> str:
        day = self._days[number]
        if ami_type.startswith("BOTTLEROCKET"):
            return f"1.{50 + number}.0-{crc32(day.encode()):08x}"
        return f"{version}.0-{day}"


def _parameter_name(ami_type: str) -> tuple[str, str]:
    """Return what stands before and after the version of Kubernetes."""
    arch = "arm64" if "ARM_64" in ami_type else "x86_64"
    if ami_type.startswith("BOTTLEROCKET"):
        flavor = f"{'-nvidia' if 'NVIDIA' in ami_type else ''}{'-fips' if 'FIPS' in ami_type else ''}"
        return "/aws/service/bottlerocket/aws-k8s-", f"{flavor}/{arch}/latest/image_version"
    if ami_type.startswith("AL2023"):
        image = f"amazon-linux-2023/{arch}/{ami_type.rpartition('_')[2].lower()}"
    else:
        image = {"AL2_x86_64_GPU": "amazon-linux-2-gpu", "AL2_ARM_64": "amazon-linux-2-arm64"}.get(ami_type, "")
    return "/aws/service/eks/optimized-ami/", f"/{image or 'amazon-linux-2'}/recommended/release_version"


class SsmApi(SimpleSystemManagerResponse):
    """moto's Systems Manager, with EKS's public parameters."""

    def __init__(self, releases: NodeReleases) -> None:
        super().__init__()
        self._releases = releases

    def get_parameter(self) -> ActionResult:
        name, _, wanted = self._get_param("Name").partition(":")
        found = self._releases.parameter(name, wanted)
        if found is None:
            return super().get_parameter()
        value, version, at = found
        arn = f"arn:aws:ssm:{self.region}::parameter{name}"
        about = {"Type": "String", "Version": version, "LastModifiedDate": at, "ARN": arn, "DataType": "text"}
        return ActionResult({"Parameter": {"Name": name, "Value": value, **about}})
