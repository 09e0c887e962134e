"""What lines say of a program that no other node would help: its container's memory, and what its image is for. Pure.

Rows as in signs.py, which come first: what these say follows there from a GPU or a driver, too.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from airflow_gpu_provider.training.wait.signs import Advice, Sign
from airflow_gpu_provider.untrusted import LONGEST_TEXT

RAISE_MEMORY = "Raise the memory limit in container_resources; /dev/shm counts as the container's memory"
"""What to do about a container that needs more memory than its limit."""

HELPER_KILLED = Advice(
    cause="memory",
    what="a process that it had started was killed, as the kernel does when memory is short",
    fix=f"{RAISE_MEMORY}. Or start fewer processes (num_workers).",
)
SHM_FULL = Advice(
    cause="memory",
    what="its shared memory, /dev/shm, is full",
    fix="Give it more by shm_size, and as much more memory limit in container_resources, as which it counts; or start"
    " fewer processes (num_workers).",
)
NOT_FOR_GPU = Advice(
    cause="image",
    what="its image has no code for the GPU of node {node}",
    fix="Take an image whose libraries are built for that GPU's compute capability, or another machine type.",
)
NOT_FOR_CUDA = Advice(
    cause="image",
    what="its image has a library that is built without CUDA",
    fix="Take an image, or a version of the library that the line names, that is built for CUDA.",
)
NOT_FOR_CPU = Advice(
    cause="image",
    what="its image is for another architecture than the processor of node {node}",
    fix="Build the image for the machines' architecture too (docker buildx build --platform linux/amd64,linux/arm64),"
    " or take machines of the image's. If the command is a script, let it begin with #! and its interpreter.",
)

_GENERATION = "Volta|Turing|Ampere|Ada|Hopper|Blackwell"

_SIGNS = (
    # -- memory ----------------------------------------------------------------------------------------------
    Sign(
        r"DataLoader worker \(pid.{1,60}\) is killed by signal: Killed",
        HELPER_KILLED,
        "pytorch: torch/csrc/DataLoader.cpp",
    ),
    Sign(r"exit codes of the workers are \{[^}]{0,200}SIGKILL", HELPER_KILLED, "loky: process_executor.py"),
    Sign(r"died with <Signals\.SIGKILL", HELPER_KILLED, "Python: subprocess.py"),
    Sign(r"\bfailed \(exitcode: -9\)", HELPER_KILLED, "pytorch: torch/distributed/elastic/multiprocessing/api.py"),
    Sign(r"^(\S{1,100}: (line )?\d{1,6}: +\d{1,8} )?Killed( {2,}|$)", HELPER_KILLED, "bash, dash: jobs.c"),
    Sign(r"\(pid:\d{1,10}\) was sent SIGKILL! Perhaps out of memory", HELPER_KILLED, "gunicorn: arbiter.py"),
    Sign(r"Task was killed due to the node running low on memory", HELPER_KILLED, "ray: its memory monitor"),
    Sign(
        r"is killed by signal: Bus error|bus error encountered in worker|insufficient shared memory \(shm\)",
        SHM_FULL,
        "pytorch: torch/csrc/DataLoader.cpp, torch/utils/data/_utils/signal_handling.py",
    ),
    Sign(
        r"</torch_[^>]{1,80}>.{0,100}(No space left|Cannot allocate memory)|unable to write to file </torch_",
        SHM_FULL,
        "pytorch: aten/src/ATen/MapAllocator.cpp",
    ),
    Sign(
        r"failed to extend /dev/shm/nccl|shared memory segment /dev/shm/nccl|/dev/shm/.{0,200}No space left"
        r"|No space left on device.{0,20}/dev/shm/",
        SHM_FULL,
        "nccl: src/misc/shmutils.cc; errno",
    ),
    # -- another GPU -----------------------------------------------------------------------------------------
    Sign(r"(?i:no kernel image is available)|cudaErrorNoKernelImageForDevice", NOT_FOR_GPU, "CUDA runtime API: 209"),
    Sign(r"CUDA_ERROR_NO_BINARY_FOR_GPU", NOT_FOR_GPU, "CUDA driver API: error 209; cupy#7987"),
    Sign(r"named symbol not found at line \d{1,6} in file .{0,200}csrc", NOT_FOR_GPU, "bitsandbytes: csrc/ops.cu"),
    Sign(r"invalid device function|cudaErrorInvalidDeviceFunction", NOT_FOR_GPU, "CUDA runtime API: error 98"),
    Sign(r"device kernel image is invalid|cudaErrorInvalidKernelImage", NOT_FOR_GPU, "CUDA runtime API: error 200"),
    Sign(r"(CUDNN|CUBLAS|CUSPARSE|CUSOLVER)_STATUS_\w{0,40}ARCH_MISMATCH", NOT_FOR_GPU, "cuBLAS, cuDNN: status codes"),
    Sign(
        r"Value 'sm_\w+' is not defined for option 'gpu-name'|Unsupported gpu architecture"
        r"|invalid value for --gpu-architecture",
        NOT_FOR_GPU,
        "ptxas, nvcc, NVRTC: triton#5950, cupy",
    ),
    Sign(
        r"(?i:not supported in this architecture|no device code compatible with CUDA arch)"
        r"|(?i:(compute|CUDA|device with) capability.{0,80}(at least|minimum|or higher|>|but ))"
        r"|(?i:(minimum|only|requires?|needs?|at least|or newer|not supported).{0,80}(compute|CUDA|device) capability)"
        r"|(?i:unsupported (compute|CUDA) capability|(compute|CUDA) capability.{0,40}(not supported|unsupported))"
        r"|Minimum capability: \d+",
        NOT_FOR_GPU,
        "triton; ggml-cuda.cu; vllm: platforms/cuda.py, model_loader (vllm#20193); xformers; torch: _scaled_mm",
    ),
    Sign(
        rf"(?i:only supports?|requires?|needs?|only (?:works|available|supported) (?:on|for)) (?:\S+ ){{0,4}}"
        rf"(?:{_GENERATION})\b.{{0,40}}\b(?:GPU|SM ?\d)",
        NOT_FOR_GPU,
        "flash-attention: csrc/flash_attn/flash_api.cpp",
    ),
    Sign(
        r"(?i:not supported (on|by|for) (this|the current|your) GPU|no longer supports this GPU)"
        r"|too old to be supported by the triton GPU compiler",
        NOT_FOR_GPU,
        "vllm; torch: cuda/__init__.py, _inductor/exc.py",
    ),
    Sign(
        r"generated on an incompatible device|Target GPU SM \d+ is not supported",
        NOT_FOR_GPU,
        "TensorRT: its runtime and builder",
    ),
    Sign(
        r"(?i:\bnot (?:been )?(?:compiled|built) with (?:CUDA|GPU)|(?:compiled|built) without (?:CUDA|GPU))",
        NOT_FOR_CUDA,
        "pytorch: cuda/__init__.py; xgboost, lightgbm, opencv",
    ),
    # -- another architecture --------------------------------------------------------------------------------
    Sign(
        r"\bexec\b.{0,400}\b[Ee]xec format error|^\S{1,200}: (line )?\d{1,6}: .{1,300}: Exec format error"
        r"|cannot execute binary file",
        NOT_FOR_CPU,
        "runc, crun, containerd: exec; dash, bash",
    ),
)
# By these a program tells that it lost a process of its own, and not to what.
_HELPER_LOST = re.compile(
    r"DataLoader worker \(pid.{1,60}\) exited unexpectedly|BrokenProcessPool|process pool was terminated abruptly"
    r"|Worker exited prematurely: signal 9|WorkerCrashedError|ActorDiedError|\bexitcode +: -9\b"
)
_LAST = 15
"""How many lines from the end such a line counts."""

_ROWS = tuple((re.compile(sign.pattern), sign.advice) for sign in _SIGNS)


def program_advice_on(line: str) -> Advice | None:
    """Return what a line says of the container's memory or its image; None if it says nothing of them.

    Of a longer one only the first LONGEST_TEXT characters are read.
    """
    line = line[:LONGEST_TEXT]
    return next((advice for pattern, advice in _ROWS if pattern.search(line)), None)


def lost_helper(lines: Sequence[str]) -> str | None:
    """Return the line by which a program tells that it lost a process, if that is among its last; None otherwise."""
    return next((line for line in reversed(lines[-_LAST:]) if _HELPER_LOST.search(line[:LONGEST_TEXT])), None)
