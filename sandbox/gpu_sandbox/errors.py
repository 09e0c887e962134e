"""What can go wrong with the sandbox itself. The failures that it simulates for its clients are not here."""

from __future__ import annotations


class SandboxError(Exception):
    """Base of all the sandbox's own errors."""


class Interrupted(KeyboardInterrupt):
    """A signal to end; only the first one counts.

    Python ends by SIGINT after a plain KeyboardInterrupt that passed an exec() of text, as in the making of a
    dataclass, even where it was caught.
    """


class GoMissing(SandboxError):
    """No Go toolchain to compile the control plane with."""


class BuildFailed(SandboxError):
    """The control plane did not compile."""


class FolderNotPrivate(SandboxError):
    """A folder of programs or tokens is another user's, or others could have written to it."""


class ComponentFailed(SandboxError):
    """A process of the sandbox exited, or was not ready in time; the end of its log is in the message."""


class SandboxNotRunning(SandboxError):
    """No sandbox with that name is running for this user."""


class SandboxAlreadyRunning(SandboxError):
    """A sandbox with that name is already running."""


class ControlApiError(SandboxError):
    """The running sandbox refused a request; its reason is the message."""
