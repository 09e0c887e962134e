"""What can go wrong with the process nodes themselves, one class each, the fix in the message."""

from __future__ import annotations


class NodeAgentError(RuntimeError):
    """The node agent refused a request, or is not there any more."""


class NamespacesForbidden(NodeAgentError):
    """This kernel, or the container around us, does not allow mount and PID namespaces."""

    def __init__(self, cause: str) -> None:
        super().__init__(
            f"This machine does not let the sandbox isolate its pods: {cause}. Pods are never run as bare "
            "processes. Run as root, or allow user namespaces (sysctl kernel.unprivileged_userns_clone=1, "
            "sysctl kernel.apparmor_restrict_unprivileged_userns=0); inside Docker start the container with "
            "--privileged. Linux 5.12 or newer is needed."
        )
        self.cause = cause


class ApiError(NodeAgentError):
    """The Kubernetes API server answered a request with an error status."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(f"{status} {reason}: {message}")
        self.status = status
        self.reason = reason


class ContainerStartError(NodeAgentError):
    """A container's root or command could not be set up; the message is what the runtime would say."""
