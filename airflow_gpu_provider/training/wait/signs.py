"""What libraries, drivers and container runtimes say when the GPU, its memory or its driver ended a program. Pure.

One table. Each row names its source: a file of the project that prints the words, or an issue that quotes them. Words
change with each release, so GPU memory is also recognised by what a line means (`_MEANT`): an allocator of the GPU, and
an allocation that failed. A verdict of GPU memory is final, so what may be something else is in no row: cuBLAS'
ALLOC_FAILED (also a bad index, or a broken driver), and XLA's "Out of memory allocating" (its CPU backend's words).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from airflow_gpu_provider.untrusted import LONGEST_TEXT

Cause = Literal["gpu memory", "driver", "gpu", "memory", "image"]


@dataclass(frozen=True, kw_only=True)
class Advice:
    """What a sign means, and what to do.

    Attributes:
        what: What happened to the container, as the end of a sentence; may contain {node}, and {memory}: its
            node's.
    """

    cause: Cause
    what: str
    fix: str


@dataclass(frozen=True)
class Sign:
    """A pattern of a line, what it means, and who prints such lines; "toolkit" is NVIDIA/nvidia-container-toolkit."""

    pattern: str
    advice: Advice
    source: str


TOO_LARGE = Advice(
    cause="gpu memory",
    what="it ran out of GPU memory{memory}",
    fix="Lower the batch size, use mixed precision, or take a pool with more memory on each GPU.",
)
NO_CACHE = Advice(
    cause="gpu memory",
    what="too little GPU memory is left for its KV cache{memory}",
    fix="Change the share of the GPU's memory that the engine may use, as in that line, shorten the longest sequence"
    " (vLLM's max_model_len), or take a pool with more memory on each GPU.",
)
BROKEN = Advice(
    cause="gpu",
    what="a GPU of node {node} is broken",
    fix="Retry the task: the next try goes to another node.",
)
MAY_BE_BROKEN = Advice(
    cause="gpu",
    what="a GPU of node {node}, or the way to its peers (NVLink), may be at fault: to CUDA it may also be the program",
    fix="Retry the task: the next try goes to another node. If it fails there too, correct the program by what its log"
    " says.",
)
NO_DRIVER = Advice(
    cause="driver",
    what="node {node} has no NVIDIA driver that it can use",
    fix="Compare the CUDA version of the image with the node's driver, and look at the pool's driver pods.",
)
OLD_DRIVER = Advice(
    cause="driver",
    what="the NVIDIA driver of node {node} is too old for the CUDA of its image",
    fix="Take an image with an older CUDA, or nodes with a newer driver.",
)
NO_GPU = Advice(
    cause="driver",
    what="it saw no GPU on node {node}",
    fix="See that neither the program nor its image sets CUDA_VISIBLE_DEVICES or NVIDIA_VISIBLE_DEVICES, and that its"
    " libraries are built for CUDA; then look at the pool's driver and device plugin pods.",
)
LOST_GPU = Advice(
    cause="driver",
    what="its container lost access to its GPU on node {node}",
    fix="Retry the task: a new container gets its devices again. If it lasts, something on the node reloads systemd,"
    " which takes the devices away (NVIDIA/nvidia-container-toolkit#48).",
)
BUSY = Advice(
    cause="driver",
    what="no process may use its GPU on node {node}",
    fix="Retry the task. If it lasts, see what uses the GPU there: another process in exclusive mode, MPS, or a MIG"
    " layout without instances.",
)
NO_FABRIC = Advice(
    cause="driver",
    what="the GPUs of node {node} are not initialized",
    fix="Retry the task. If it lasts, see that NVIDIA Fabric Manager runs on the node, in its driver's version.",
)
TOOLKIT = Advice(
    cause="driver",
    what="the NVIDIA container toolkit of node {node} could not give it its GPU",
    fix="Retry the task. If it lasts, look at the toolkit's pod on that node, which installs the runtime and writes the"
    " list of devices (CDI).",
)
# The first row that matches a line counts.
_SIGNS = (
    # -- GPU memory ------------------------------------------------------------------------------------------
    Sign(r"larger than the maximum number of tokens.{0,80}KV cache", NO_CACHE, "vllm: worker/worker.py, before V1"),
    Sign(r"Free memory on device.{0,100}less than desired GPU memory", NO_CACHE, "vllm: v1/worker/gpu_worker.py"),
    Sign(r"Not enough memory\..{0,200}mem-fraction-static", NO_CACHE, "sglang: srt/model_executor, MemoryPoolConfig"),
    Sign(r"CUDA out of memory", TOO_LARGE, "pytorch: c10/cuda/CUDACachingAllocator.cpp"),
    Sign(r"\btorch(\.cuda)?\.OutOfMemoryError", TOO_LARGE, "pytorch: torch/csrc/Exceptions.cpp"),
    Sign(r"cudaErrorMemoryAllocation|CUDA_ERROR_OUT_OF_MEMORY", TOO_LARGE, "CUDA runtime and driver API: error names"),
    Sign(r"cupy.{0,60}OutOfMemoryError", TOO_LARGE, "cupy: cuda/memory.pyx"),
    Sign(
        r"RESOURCE[_ ]EXHAUSTED: (Out of memory while trying to|Failed to allocate request)",
        TOO_LARGE,
        "xla: stream_executor/stream_executor_address_allocator.cc; jax#13428, jax_privacy#10",
    ),
    Sign(
        r"^Out of memory while trying to allocate [\d.]+ ?(bytes|[KMGT]iB)\.",
        TOO_LARGE,
        "xla, of a graph that TensorFlow runs, which puts its own error's name lines before",
    ),
    Sign(r"Memory allocation error on worker \d", TOO_LARGE, "xgboost: src/common/device_vector.cu"),
    Sign(r"bad_alloc: out_of_memory", TOO_LARGE, "rmm: error.hpp"),
    Sign(r"No executable batch size found, reached zero", TOO_LARGE, "accelerate: utils/memory.py"),
    Sign(r"Error out of memory at line \d{1,6} in file .{0,200}csrc", TOO_LARGE, "bitsandbytes: csrc/ops.cuh"),
    Sign(r"Can't allocate \d+ bytes on device \d|CUDA allocation failed", TOO_LARGE, "DALI: dali/core/cuda_error.h"),
    Sign(r"Failed to CUDA (calloc|malloc)", TOO_LARGE, "nccl: src/include/alloc.h"),
    Sign(
        r"NVML_SUCCESS == .{0,200}CUDACachingAllocator",
        TOO_LARGE,
        "pytorch: c10/cuda/CUDACachingAllocator.cpp, which asks NVML only once an allocation has failed (on MIG)",
    ),
    Sign(
        r"to \S{0,80}device:GPU:\d{1,4} in order to run .{0,200}Dst tensor is not initialized",
        TOO_LARGE,
        "TensorFlow: common_runtime/eager/execute.cc, gpu_util.cc",
    ),
    # -- a broken GPU ----------------------------------------------------------------------------------------
    Sign(r"uncorrectable (double[- ]bit )?ECC error", BROKEN, "CUDA runtime API: error 214"),
    Sign(r"cudaErrorECCUncorrectable|CUDA_ERROR_ECC_UNCORRECTABLE", BROKEN, "CUDA runtime and driver API: error 214"),
    Sign(r"uncorrectable NVLink error", BROKEN, "CUDA runtime API: error 220"),
    Sign(r"cudaErrorNvlinkUncorrectable|CUDA_ERROR_NVLINK_UNCORRECTABLE", BROKEN, "CUDA: error 220"),
    Sign(r"GPU has fallen off the bus|GPU is lost|GPU requires reset", BROKEN, "NVIDIA: XID 79; NVML: errors 15, 16"),
    Sign(r"device error: GPU-[\da-f-]+: unknown device", BROKEN, "libnvidia-container: src/cli/configure.c"),
    # "There is a hardware error, or the program ..."; the process ends, and the GPU may be used again (XID 94).
    Sign(r"over nvlink or a hardware error", MAY_BE_BROKEN, "CUDA runtime API: error 721; ultralytics#24536"),
    Sign(r"cudaErrorContained|CUDA_ERROR_CONTAINED", MAY_BE_BROKEN, "CUDA runtime and driver API: error 721"),
    Sign(r"hardware stack error|cudaErrorHardwareStack|CUDA_ERROR_HARDWARE_STACK", MAY_BE_BROKEN, "CUDA: error 714"),
    Sign(r"in external entity outside of CUDA", MAY_BE_BROKEN, "CUDA runtime API: error 911"),
    Sign(r"cudaErrorExternalDevice|CUDA_ERROR_EXTERNAL_DEVICE", MAY_BE_BROKEN, "CUDA: error 911"),
    Sign(r"\bcuda (failure|error|err):? \(?(714|721|911)\b", MAY_BE_BROKEN, "nccl: src/include/checks.h"),
    # -- the driver, at the start of a container -------------------------------------------------------------
    Sign(
        r"nvidia-container-cli(\.real)?: requirement error",
        OLD_DRIVER,
        "libnvidia-container: src/cli/dsl.c; toolkit#152",
    ),
    Sign(
        r"nvidia-container-cli(\.real)?: (initialization|detection|driver) error|nvml error: driver not loaded",
        NO_DRIVER,
        "libnvidia-container: src/cli/configure.c, src/driver.c; toolkit#237, #2102, llama.cpp#9665",
    ),
    Sign(
        r"nvidia-container-cli(\.real)?: \w+ error",
        TOOLKIT,
        "libnvidia-container: src/cli/configure.c; k8s-device-plugin#324, #1400",
    ),
    Sign(r"invoking the NVIDIA Container Runtime Hook directly", TOOLKIT, "toolkit: cmd/nvidia-container-runtime-hook"),
    Sign(
        r"nvidia-(container-(cli|toolkit|runtime)|cdi-hook|ctk)\S{0,100}: (\S{1,200}: )?(no such file"
        r"|executable file not found|permission denied|exec format error|input/output error|text file busy"
        r"|version .{1,80} not found|error while loading shared libraries|symbol lookup error|undefined symbol"
        r"|cannot open shared object|error relocating)"
        r"|error loading shared librar.{0,200}libnvidia-container",
        TOOLKIT,
        "runc, containerd: hooks and exec; glibc and musl: their loaders; dandi-hub#248",
    ),
    Sign(r"executing hook \S{0,100}nvidia-(cdi-hook|ctk)", TOOLKIT, "crun: utils.c"),
    Sign(
        r"/dev/nvidia[\w-]{0,40}\W.{0,200}no such file",
        NO_DRIVER,
        "moby: daemon/oci_linux.go; container-device-interface: pkg/cdi/container-edits_unix.go; toolkit#885",
    ),
    Sign(
        r"unresolvable CDI devices|inject(ion|ing)? (of )?CDI devices?|CDI device injection",
        TOOLKIT,
        "container-device-interface: pkg/cdi/cache.go; containerd: pkg/cdi/oci_opt.go; toolkit#1239, gpustack#4130",
    ),
    # -- the driver, in a program ----------------------------------------------------------------------------
    Sign(r"CUDA driver version is insufficient|cudaErrorInsufficientDriver", OLD_DRIVER, "CUDA runtime API: error 35"),
    Sign(r"NVIDIA driver on your system is too old", OLD_DRIVER, "pytorch: c10/cuda/CUDAFunctions.cpp"),
    Sign(r"PTX was compiled with an unsupported toolchain", OLD_DRIVER, "CUDA runtime API: error 222"),
    Sign(r"cudaErrorUnsupportedPtxVersion|CUDA_ERROR_UNSUPPORTED_PTX_VERSION", OLD_DRIVER, "CUDA: error 222"),
    Sign(r"not supported in the installed CUDA driver|CallRequiresNewerDriver", OLD_DRIVER, "CUDA: error 36"),
    Sign(r"forward compatibility was attempted on non supported HW", OLD_DRIVER, "CUDA runtime API: error 804"),
    Sign(r"cudaErrorCompatNotSupported|CUDA_ERROR_COMPAT_NOT_SUPPORTED", OLD_DRIVER, "CUDA: error 804"),
    Sign(r"devices?(\(s\))? (is/)?are busy or unavailable|cudaErrorDevicesUnavailable", BUSY, "CUDA: error 46"),
    Sign(r"MPS client failed to connect|MPS server is not ready|cudaErrorMps\w+", BUSY, "CUDA: errors 805 to 809"),
    Sign(r"CUDA_ERROR_(MPS_\w+|DEVICE_UNAVAILABLE)", BUSY, "CUDA driver API: errors 805 to 809, 46"),
    Sign(r"system not yet initialized", NO_FABRIC, "CUDA runtime API: error 802"),
    Sign(r"cudaErrorSystemNotReady|CUDA_ERROR_SYSTEM_NOT_READY", NO_FABRIC, "CUDA: error 802"),
    Sign(r"Found no NVIDIA driver on your system", NO_DRIVER, "pytorch: c10/cuda/CUDAFunctions.cpp"),
    Sign(r"CUDA driver initialization failed", NO_DRIVER, "pytorch: c10/cuda/CUDAFunctions.cpp"),
    Sign(r"unsupported display driver / cuda driver combination", NO_DRIVER, "CUDA runtime API: error 803"),
    Sign(r"cudaErrorSystemDriverMismatch|CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", NO_DRIVER, "CUDA: error 803"),
    Sign(r"CUDA driver is a stub library|cudaErrorStubLibrary|CUDA_ERROR_STUB_LIBRARY", NO_DRIVER, "CUDA: error 34"),
    Sign(r"OS call failed or operation not supported on this OS", NO_DRIVER, "CUDA driver API: error 304"),
    Sign(r"no CUDA-capable device is detected|cudaErrorNoDevice|CUDA_ERROR_NO_DEVICE", NO_GPU, "CUDA: error 100"),
    Sign(r"failed call to cuInit", NO_DRIVER, "xla: stream_executor/cuda; aws-deep-learning-ami-ubuntu-dcv-desktop#33"),
    Sign(r"operation cuInit\(0\) failed", NO_DRIVER, "jax: jaxlib/cuda/versions_helpers.cc"),
    Sign(r"Call to cuInit results in|CUDA driver library cannot be found", NO_DRIVER, "numba: cuda/cudadrv/driver.py"),
    Sign(r"Driver/library version mismatch", NO_DRIVER, "NVML: error 18"),
    Sign(r"initialize NVML: Unknown Error|NVMLError_Unknown", LOST_GPU, "NVML: error 999; gpu-operator#485"),
    Sign(r"Unable to determine the device handle for", LOST_GPU, "nvidia-smi; toolkit#69, dcgm-exporter#604"),
    Sign(r"GPU access blocked by the operating|NVMLError_OperatingSystem", NO_GPU, "NVML: error 17; no /dev/nvidia*"),
    Sign(r"initialize NVML|NVML Shared Library Not Found", NO_DRIVER, "nvidia-smi; NVML: error 12"),
    Sign(r"NVMLError_(LibraryNotFound|DriverNotLoaded|LibRmVersionMismatch)", NO_DRIVER, "pynvml: pynvml.py"),
    Sign(r"NVIDIA-SMI (has failed|couldn't find)", NO_DRIVER, "nvidia-smi"),
    Sign(r"lib(cuda|nvidia-ml)\.so[.\d]*: cannot open shared object file", NO_DRIVER, "glibc: dlopen"),
    Sign(r"libcuda\.so cannot found", NO_DRIVER, "triton: backends/nvidia/driver.py"),
    Sign(r"\b0 active drivers \(\[\]\)", NO_GPU, "triton: runtime/driver.py"),
    Sign(r"Failed to infer device type", NO_GPU, "vllm: config/device.py; vllm#3019"),
    Sign(r"No visible GPU devices", NO_GPU, "xla: pjrt/gpu; jax: _src/xla_bridge.py"),
    Sign(r"no supported devices found for platform CUDA", NO_GPU, "xla: pjrt/gpu; jax: _src/xla_bridge.py"),
    Sign(r"No supported gpu backend found|`CUDAAccelerator` can not run", NO_GPU, "lightning: fabric/connector.py"),
    Sign(r"But your machine only has: \[\]", NO_GPU, "lightning: fabric/utilities/device_parser.py"),
    Sign(r"^No devices were found$", NO_GPU, "nvidia-smi"),
    Sign(
        r"\bno (\w+ ){0,2}(GPUs?|CUDA[ -](capable )?devices?)(\(s\))? (?!memory)(\w+ ){0,2}"
        r"(available|found|detected|visible)\b",
        NO_GPU,
        "pytorch: c10/cuda/CUDAFunctions.cpp (No CUDA GPUs are available), vllm#3019, and others in like words",
    ),
)
_ROWS = tuple((re.compile(sign.pattern, re.IGNORECASE), sign.advice) for sign in _SIGNS)

# What an allocation on a GPU is called, and how it fails: nccl: src/include/checks.h (nccl#1235), LightGBM:
# cuda/cuda_utils.hu, onnxruntime: cuda_call.cc, ggml: ggml-cuda.cu, TensorFlow: framework/op_kernel.cc, paddle:
# cuda_allocator.cc, TensorRT ("GPU memory could not be allocated"), faiss, CTranslate2, OpenCV.
_ALLOCATOR = re.compile(r"cuda|cuMem|\bGPU|VRAM|\bHBM\b|device memory", re.IGNORECASE)
_FAILED = re.compile(
    r"\bout of (\w+ ){0,2}(memory|VRAM)\b|\bOutOfMemory|\bOOM\b|memory allocation (failed|failure|error)"
    r"|(insufficient|not enough|no available|too little) (\w+ ){0,3}(memory|VRAM)"
    r"|\bno (\w+ ){0,2}(memory|VRAM) (\w+ ){0,2}(available|left|free)\b"
    r"|(\bfail\w*|unable|cannot|can't|could not) (to )?(re)?(alloc|reserv)\w* .{0,60}(memory|bytes|[KMGT]i?B\b|buffer)"
    r"|memory.{0,60}(could not|cannot|can't) be (alloc|reserv)\w*",
    re.IGNORECASE,
)

# And an engine's cache: vllm: v1/core/kv_cache_utils.py (vllm#2248, #27508; vllm#50985 rewrites two of its messages).
_CACHE = re.compile(r"\bKV[ _-]?cache|\bcache blocks", re.IGNORECASE)
_LACKS = re.compile(
    r"\bno (available |free )?memory|(insufficient|not enough|too little) .{0,60}memory"
    r"|\bonly\b .{0,60}(available|free)|((larger|more|smaller|less) than|exceed\w{0,10}) .{0,60}(memory|available)",
    re.IGNORECASE,
)
_MEANT = ((_CACHE, _LACKS, NO_CACHE), (_ALLOCATOR, _FAILED, TOO_LARGE))

# The same about something else: the host's memory, also what CUDA pins of it; a bucket's quota; the memory that a
# block of threads shares; and what cuBLAS and cuDNN say of other failures too.
_ELSEWHERE = re.compile(
    r"device:CPU(?!:\d+ to )|allocator (mkl)?cpu|CPUAllocator|\b(on|from|in) (the )?host\b|host (memory|buffer)"
    r"|host_?(alloc|bfc|regist)|alloc_?host|pinned|page-?locked|(CPU|system|shared) memory|object store|/dev/shm"
    r"|low on memory|\bquota\b|\bdisk\b|\bErrno 12\b"
    r"|CUBLAS_STATUS|CUDNN_STATUS|CUFFT_",
    re.IGNORECASE,
)


def advice_on(line: str) -> Advice | None:
    """Return what a line says about the GPU, its memory or its driver; None if it says nothing of them.

    Of a longer one only the first LONGEST_TEXT characters are read.
    """
    line = line[:LONGEST_TEXT]
    advice = next((advice for pattern, advice in _ROWS if pattern.search(line)), None)
    if advice is None:
        meant = (advice for what, how, advice in _MEANT if what.search(line) and how.search(line))
        advice = next(meant, None)
    return None if advice is TOO_LARGE and _ELSEWHERE.search(line) else advice
