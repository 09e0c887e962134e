"""EC2's API of launch templates, where moto's is kinder than EC2, or shows what EC2 does not."""

from __future__ import annotations

import re
from typing import Any

from moto.core.responses import ActionResult
from moto.ec2.exceptions import EC2ClientError, InvalidParameterValueError
from moto.ec2.responses import EC2Response
from moto.ec2.utils import parse_user_data

_NAME = re.compile(r"[a-zA-Z0-9().\-/_]{3,128}")
_AT_ONCE = 200
MAX_USER_DATA = 16 * 1024
"""EC2's user guide, "Run commands when you launch an EC2 instance": in bytes, before it is encoded."""


class MalformedName(EC2ClientError):
    def __init__(self, name: str) -> None:
        text = "A launch template name must be between 3 and 128 characters, and may contain letters, numbers, and the"
        super().__init__("InvalidLaunchTemplateName.MalformedException", f"{text} characters ( ) . / _ -: {name}")


class LaunchTemplates(EC2Response):
    """As moto's, with EC2's own rules of names, user data and pages (botocore, CreateLaunchTemplateRequest)."""

    def create_launch_template(self) -> ActionResult:
        """The tags of the request are the template's; moto has them in its data, too."""
        name, data = str(self._get_param("LaunchTemplateName")), self._template_data()
        if not _NAME.fullmatch(name):
            raise MalformedName(name)
        self.error_on_dryrun()
        tags = self._parse_tag_specification()
        if unlike := tags.keys() - {"launch-template"}:
            raise InvalidParameterValueError(f"{sorted(unlike)} cannot be tagged by this call")
        description = self._get_param("VersionDescription") or ""
        template = self.ec2_backend.create_launch_template(name, description, data, tags)
        return ActionResult({"LaunchTemplate": self._described(template)})

    def create_launch_template_version(self) -> ActionResult:
        """Moto keeps the user data as text, and can make no machine of it then."""
        if self._get_param("SourceVersion"):
            raise NotImplementedError("the sandbox bases no version of a launch template on another")
        backend, name = self.ec2_backend, self._get_param("LaunchTemplateName")
        template = (
            backend.get_launch_template_by_name(name)
            if name
            else backend.get_launch_template(self._get_param("LaunchTemplateId"))
        )
        data = self._template_data()
        self.error_on_dryrun()
        version = template.create_version(data, self._get_param("VersionDescription") or "")
        return ActionResult(
            {
                "LaunchTemplateVersion": {
                    "CreateTime": version.create_time,
                    "CreatedBy": f"arn:{self.partition}:iam::{self.current_account}:root",
                    "DefaultVersion": template.is_default(version),
                    "LaunchTemplateData": version.data,
                    "LaunchTemplateId": template.id,
                    "LaunchTemplateName": template.name,
                    "VersionDescription": version.description,
                    "VersionNumber": version.number,
                }
            }
        )

    def describe_launch_templates(self) -> ActionResult:
        """Moto shows the first fifteen, and says nothing of more."""
        self.error_on_dryrun()
        found = self.ec2_backend.describe_launch_templates(
            template_names=self._get_param("LaunchTemplateNames", []),
            template_ids=self._get_param("LaunchTemplateIds", []),
            filters=self._filters_from_querystring(),
        )
        start = int(self._get_param("NextToken") or 0)
        end = start + int(self._get_param("MaxResults") or _AT_ONCE)
        shown = [self._described(template) for template in found[start:end]]
        return ActionResult({"LaunchTemplates": shown, "NextToken": str(end) if end < len(found) else ""})

    def _template_data(self) -> dict[str, Any]:
        data: dict[str, Any] = self._get_param("LaunchTemplateData", {})
        user_data = parse_user_data(data.get("UserData"))
        if user_data is not None and len(user_data.decode("latin-1")) > MAX_USER_DATA:
            raise InvalidParameterValueError(f"User data is limited to {MAX_USER_DATA} bytes")
        return {**data, "UserData": user_data}

    def _described(self, template: Any) -> dict[str, Any]:
        return {
            "CreateTime": template.create_time,
            "CreatedBy": f"arn:{self.partition}:iam::{self.current_account}:root",
            "DefaultVersionNumber": template.default_version_number,
            "LatestVersionNumber": template.latest_version_number,
            "LaunchTemplateId": template.id,
            "LaunchTemplateName": template.name,
            "Tags": template.tags,
        }
