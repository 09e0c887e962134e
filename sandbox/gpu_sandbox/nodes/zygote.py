"""The process that all container processes are forked from: PID 1 of a namespace that dies as a whole.

The agent forks it before anything else runs. However the agent ends, the kernel kills this process, and with PID 1
of its namespace every process in it, those in the containers' nested namespaces included. It has one thread and no
event loop, so that forking it is safe and cheap; what it is asked comes as small JSON packets with file descriptors.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
import sys
import traceback
from collections.abc import Mapping
from typing import Any, NoReturn

from gpu_sandbox.nodes import rootfs, syscalls

PACKET = 65536
# What containerd grants to a container that asks for nothing (the bits of capability(7)).
_DEFAULT_CAPABILITIES = {0, 1, 3, 4, 5, 6, 7, 8, 10, 13, 18, 27, 29, 31}


def supervise(sock: socket.socket, agent_pid: int) -> NoReturn:
    """In the process just forked by the agent: make the namespaces, fork the zygote as their PID 1, wait for it.

    A failure is told to the agent as {"failed": text}; success as {"ready": true}.
    """
    try:
        syscalls.die_with_parent(signal.SIGKILL)
        if os.getppid() != agent_pid:
            os._exit(1)
        in_user_namespace = _make_namespaces()
        pid = os.fork()
    except OSError as error:
        sock.send(json.dumps({"failed": str(error)}).encode())
        os._exit(1)
    if pid == 0:
        os.dup2(2, 1)  # stdout is the agent's line to its parent
        _run_and_exit(lambda: _Zygote(sock, in_user_namespace=in_user_namespace).run())
    sock.close()
    syscalls.set_process_name("gpu-node-guard")
    os.waitpid(pid, 0)
    os._exit(0)


def _make_namespaces() -> bool:
    """New mount and PID namespaces for our children, in a user namespace where we are not the real root."""
    flags = syscalls.CLONE_NEWNS | syscalls.CLONE_NEWPID
    if os.geteuid() == 0:
        try:
            syscalls.unshare(flags)
        except PermissionError:
            pass  # root without CAP_SYS_ADMIN, as in a plain Docker container: try as a user would
        else:
            return False
    uid, gid = os.geteuid(), os.getegid()
    syscalls.unshare(flags | syscalls.CLONE_NEWUSER)
    for name, line in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(line)
    return True


def _run_and_exit(body: Any) -> NoReturn:
    try:
        body()
    except BaseException:  # noqa: BLE001 - the last frame of a forked process: report, never return into the agent's code
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(1)


class _Zygote:
    def __init__(self, sock: socket.socket, *, in_user_namespace: bool) -> None:
        self._sock = sock
        self._in_user_namespace = in_user_namespace
        self._pidfds: dict[int, int] = {}

    def run(self) -> None:
        # Should the process between us and the agent die, we must too.
        syscalls.die_with_parent(signal.SIGKILL)
        syscalls.set_process_name("gpu-node-zygote")
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        wake_read, wake_write = os.pipe()
        os.set_blocking(wake_write, False)
        os.set_blocking(wake_read, False)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        try:
            syscalls.mount("none", "/", flags=syscalls.MS_REC | syscalls.MS_PRIVATE)
            self._self_fd = os.pidfd_open(os.getpid())
        except OSError as error:
            self._send({"failed": str(error)})
            return
        self._send({"ready": True, "in_user_namespace": self._in_user_namespace})
        selector = selectors.DefaultSelector()
        selector.register(self._sock, selectors.EVENT_READ)
        selector.register(wake_read, selectors.EVENT_READ)
        while True:
            ready = {key.fd for key, _ in selector.select()}
            if wake_read in ready:
                _drain(wake_read)
                self._reap()
            if self._sock.fileno() in ready and not self._serve():
                return

    def _send(self, message: Mapping[str, Any], fds: tuple[int, ...] = ()) -> None:
        socket.send_fds(self._sock, [json.dumps(message).encode()], fds)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            pidfd = self._pidfds.pop(pid, None)
            if pidfd is not None:
                os.close(pidfd)
                self._send({"exited": pid, "status": os.waitstatus_to_exitcode(status)})

    def _serve(self) -> bool:
        data, fds, _, _ = socket.recv_fds(self._sock, PACKET, 16)
        if not data:
            return False
        request = json.loads(data)
        try:
            reply, out = self._answer(request, fds)
        except OSError as error:
            reply, out = {"error": str(error)}, ()
        self._send({"id": request["id"], **reply}, out)
        for fd in (*fds, *(out if request["op"] in ("start", "exec") else ())):
            if fd not in self._pidfds.values():
                os.close(fd)
        return True

    def _answer(self, request: Mapping[str, Any], fds: list[int]) -> tuple[dict[str, Any], tuple[int, ...]]:
        match request["op"]:
            case "start":
                return self._start(fds)
            case "exec":
                return self._exec(request["target"], fds)
            case "tmpfs":
                syscalls.mount(
                    "tmpfs", request["path"], "tmpfs", syscalls.MS_NOSUID | syscalls.MS_NODEV, request["options"]
                )
            case "unmount":
                syscalls.detach(request["path"])
        return {}, ()

    def _start(self, fds: list[int]) -> tuple[dict[str, Any], tuple[int, ...]]:
        syscalls.unshare(syscalls.CLONE_NEWPID)
        try:
            return self._fork(fds, self._container)
        finally:
            syscalls.setns(self._self_fd, syscalls.CLONE_NEWPID)

    def _exec(self, target: int, fds: list[int]) -> tuple[dict[str, Any], tuple[int, ...]]:
        pidfd = self._pidfds.get(target)
        if pidfd is None:
            raise ProcessLookupError(3, "the container is not running")
        syscalls.setns(pidfd, syscalls.CLONE_NEWPID)

        def join(spec: Mapping[str, Any]) -> None:
            syscalls.setns(pidfd, syscalls.CLONE_NEWNS | syscalls.CLONE_NEWUTS)
            _become(spec, one_user=self._in_user_namespace)

        try:
            return self._fork(fds, join)
        finally:
            syscalls.setns(self._self_fd, syscalls.CLONE_NEWPID)

    def _fork(self, fds: list[int], body: Any) -> tuple[dict[str, Any], tuple[int, ...]]:
        """Fork a child that runs body; what comes back lets the agent see it start, and signal it.

        The pipe that goes to the agent ends when the child's exec succeeds, or carries the reason why not.
        """
        problem_read, problem_write = os.pipe()
        pid = os.fork()
        if pid == 0:
            _run_and_exit(lambda: _child(fds, problem_write, body))
        os.close(problem_write)
        pidfd = os.pidfd_open(pid)
        self._pidfds[pid] = pidfd
        return {"pid": pid}, (pidfd, problem_read)

    def _container(self, spec: Mapping[str, Any]) -> None:
        syscalls.unshare(syscalls.CLONE_NEWNS | syscalls.CLONE_NEWUTS)
        socket.sethostname(spec["hostname"])
        rootfs.enter(spec["staging"], spec, in_user_namespace=self._in_user_namespace)
        _become(spec, one_user=self._in_user_namespace)


def _drain(fd: int) -> None:
    try:
        os.read(fd, 4096)
    except BlockingIOError:
        return


def _child(fds: list[int], problem: int, body: Any) -> None:
    """A forked child up to its exec: fds are the spec (a memory file) and then stdin, stdout and stderr."""
    try:
        signal.set_wakeup_fd(-1)
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            if int(number) < 32:
                signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        os.setsid()
        with open(fds[0], "rb") as file:
            file.seek(0)
            spec = json.load(file)
        for target, fd in enumerate(fds[1:4]):
            os.dup2(fd, target)
        if spec["tty"]:
            _take_terminal()
        body(spec)
    except Exception as error:  # noqa: BLE001 - told to the agent in words: there is nobody above us
        os.write(problem, f"{error}".encode()[:4000] or b"failed")


def _take_terminal() -> None:
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def _become(spec: Mapping[str, Any], *, one_user: bool) -> None:
    """Turn into the wanted program: folder, capabilities, user, and exec.

    In a user namespace of one user there is nobody else to become.
    """
    os.makedirs(spec["cwd"], exist_ok=True)
    os.chdir(spec["cwd"])
    os.umask(0o022)
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("500")
    if not spec["privileged"]:
        with open("/proc/sys/kernel/cap_last_cap") as file:
            last = int(file.read())
        for number in set(range(last + 1)) - _DEFAULT_CAPABILITIES:
            syscalls.drop_capability(number)
    if not one_user:
        _become_user(spec)
    argv, env = spec["argv"], spec["env"]
    program = _find(argv[0], env.get("PATH", ""))
    os.execve(program, argv, env)


def _become_user(spec: Mapping[str, Any]) -> None:
    if spec["gid"] is not None:
        os.setgroups(spec["groups"])
        os.setgid(spec["gid"])
    if spec["uid"] is not None:
        os.setuid(spec["uid"])


def _find(name: str, path: str) -> str:
    if "/" in name:
        if not os.path.exists(name):
            raise FileNotFoundError(f'exec: "{name}": stat {name}: no such file or directory')
        return name
    for folder in path.split(":"):
        candidate = os.path.join(folder, name)
        if os.path.isfile(candidate) and os.access(candidate, os.X_OK):
            return candidate
    raise FileNotFoundError(f'exec: "{name}": executable file not found in $PATH')
