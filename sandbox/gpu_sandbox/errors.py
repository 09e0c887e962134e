"""What can go wrong with the sandbox itself. The failures that it simulates for its clients are not here."""

from __future__ import annotations


class SandboxError(Exception):
    """Base of all errors of the sandbox's own."""


class Interrupted(KeyboardInterrupt):
    """A signal to end, of which only the first is heard.

    Python ends by SIGINT after a plain KeyboardInterrupt that passed an exec() of text, as in the making of a
    dataclass, even where it was caught.
    """


class GoMissing(SandboxError):
    """There is nothing to compile the control plane with."""


class BuildFailed(SandboxError):
    """The control plane did not compile."""


class ComponentFailed(SandboxError):
    """A process of the sandbox ended, or did not become ready in time; the end of its log is in the message."""


class SandboxNotRunning(SandboxError):
    """No sandbox of that name runs for this user."""


class SandboxAlreadyRunning(SandboxError):
    """A sandbox of that name runs already."""


class ControlApiError(SandboxError):
    """The running sandbox refused a request; its reason is the message."""
