"""The texts by which libraries and drivers say that the GPU, its memory or its driver ended a program."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from airflow_gpu_provider.training.life.diagnosis import last_word
from airflow_gpu_provider.training.wait.signs import (
    BROKEN,
    BUSY,
    LOST_GPU,
    MAY_BE_BROKEN,
    NO_DRIVER,
    NO_FABRIC,
    NO_GPU,
    OLD_DRIVER,
    Advice,
)

TORCH = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 21.96 GiB "
    "of which 9.06 MiB is free."
)


# Printed on an H200 (driver 580, CUDA 13.0), some with the GPU hidden from them (CUDA_VISIBLE_DEVICES=""), or in a
# mount namespace with empty files for the driver's libraries or devices: torch 2.11, torchrun, lightning, jax 0.11,
# CuPy 14.2, numba, triton 3.6, CUDA C++, nvidia-smi. Where the program itself is the cause, it is empty.
PRINTED: dict[str, dict[str, Any]] = json.loads((Path(__file__).parent / "logs_of_a_gpu.json").read_text())


@pytest.mark.parametrize("name", PRINTED)
def test_what_real_programs_print_on_a_real_gpu(name: str) -> None:
    word = last_word(PRINTED[name]["log"])
    assert (word.cause if word else "") == PRINTED[name]["cause"]


@pytest.mark.parametrize(
    "lines",
    [
        ["PermissionError: the call to bind to port 80 was blocked by the operating system"],
        ["Traceback (most recent call last):", "RuntimeError: Failed to initialize NVML: Not Supported", "loss 0.4",
         "Traceback (most recent call last):",
         "RuntimeError: Backend 'gpux' is not in the list of known backends: ['cpu', 'cuda']."],
    ],
)  # fmt: skip
def test_what_only_sounds_like_it_is_the_program(lines: list[str]) -> None:
    assert last_word(lines) is None


@pytest.mark.parametrize("name", ["CUDA_ERROR_MPS_CONNECTION_FAILED", "CUDA_ERROR_DEVICE_UNAVAILABLE"])
def test_a_gpu_that_is_taken_is_told_of_by_jax_too(name: str) -> None:
    word = last_word([f"RuntimeError: jaxlib/cuda/versions_helpers.cc:135: operation cuInit(0) failed: {name}"])
    assert word is not None
    assert word.advice is BUSY


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        (TORCH, "gpu memory"),
        ("torch.cuda.OutOfMemoryError: CUDA out of memory.", "gpu memory"),
        ("RuntimeError: CUDA error: out of memory", "gpu memory"),
        ("cupy_backends.cuda.api.runtime.CUDARuntimeError: cudaErrorMemoryAllocation: out of memory", "gpu memory"),
        ("cupy.cuda.memory.OutOfMemoryError: Out of memory allocating 8,589,934,592 bytes", "gpu memory"),
        ("jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to", "gpu memory"),
        ("RuntimeError: CUDA driver version is insufficient for CUDA runtime version", "driver"),
        ("cudaErrorNoDevice: no CUDA-capable device is detected", "driver"),
        ("RuntimeError: Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU", "driver"),
        ("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.", "driver"),
        ("Failed to initialize NVML: Driver/library version mismatch", "driver"),
        ("NVRM: Xid (PCI:0000:00:1e): 79, pid=1234, GPU has fallen off the bus.", "gpu"),
        ("RuntimeError: CUDA error: uncorrectable ECC error encountered", "gpu"),
        ("NVRM: Xid (PCI:0000:00:1e): 48, pid='<unknown>', DBE", "gpu"),
        ("Unable to determine the device handle for GPU 0: GPU is lost.  Reboot the system to recover this GPU", "gpu"),
        ("NVRM: Xid (PCI:0000:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot)", "gpu"),
    ],
)
def test_words(line: str, cause: str) -> None:
    word = last_word(["Traceback (most recent call last):", line, "terminating"])
    assert word is not None
    assert (word.cause, word.line) == (cause, line)


@pytest.mark.parametrize(
    "line",
    [
        # each as its source prints it: see training/wait/signs.py
        "OOM when allocating tensor with shape[256,512,56,56] and type float on /job:localhost/replica:0/task:0/"
        "device:GPU:0 by allocator GPU_0_bfc",
        "RuntimeError: Resource exhausted: Failed to allocate request for 32.00MiB (33554432B) on device ordinal 0",
        "jax.errors.JaxRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 16.00GiB.",
        "train-host-0:1:7 [0] include/alloc.h:233 NCCL WARN Cuda failure 'out of memory'",
        "lightgbm.basic.LightGBMError: [CUDA] out of memory /src/cuda/cuda_utils.cpp 12",
        "CUDA failure 2: out of memory ; GPU=0 ; hostname=train ; expr=cudaMalloc((void**)&p, size);",
        "ggml_gallocr_reserve_n: failed to allocate CUDA0 buffer of size 4294967296",
        "xgboost.core.XGBoostError: Memory allocation error on worker 0: Caching allocator",
        "MemoryError: std::bad_alloc: out_of_memory: CUDA error (failed to allocate 8589934592 bytes) at: cuda.cpp",
        "MemoryError: std::bad_alloc: out_of_memory: RMM failure at:pool.hpp:196: Maximum pool size exceeded",
        "numba.cuda.cudadrv.driver.CudaAPIError: [2] Call to cuMemAlloc results in CUDA_ERROR_OUT_OF_MEMORY",
        "pycuda._driver.MemoryError: cuMemAlloc failed: out of memory",
        "Out of memory error on GPU 0. Cannot allocate 1.2GB memory on GPU 0, 15.7GB memory has been allocated",
        "[TRT] [E] Requested amount of GPU memory (28579323904 bytes) could not be allocated.",
        "RuntimeError: CUDA failed with error out of memory",
        "RuntimeError: No executable batch size found, reached zero.",
        "Error out of memory at line 380 in file /src/csrc/pythonInterface.c",
        "RuntimeError: ran out of VRAM while loading the model",
        "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when"
        " initializing the engine (this flag also controls CPU memory reservation on the CPU backend).",
        "ValueError: To serve at least one request with the models's max seq len (32768), (4.00 GiB KV cache is needed,"
        " which is larger than the available KV cache memory (1.20 GiB).",
        "ValueError: The model's max seq len (8192) is larger than the maximum number of tokens that can be "
        "stored in KV cache",
        "ValueError: Free memory on device cuda:0 (34.34/121.63 GiB) on startup is less than "
        "desired GPU memory utilization (0.8, 97.3 GiB)",
        "ValueError: Insufficient GPU memory for the KV cache: 4.0 GiB required, only 1.2 GiB available",
        "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.",
        "tensorflow.python.framework.errors_impl.ResourceExhaustedError: {{function_node __wrapped__AddV2_device_/job:"
        "localhost/replica:0/task:0/device:GPU:0}} failed to allocate memory [Op:AddV2]",
        "InternalError: Failed copying input tensor from /job:localhost/replica:0/task:0/device:CPU:0 to /job:"
        "localhost/replica:0/task:0/device:GPU:0 in order to run _EagerConst: Dst tensor is not initialized.",
        "torch.AcceleratorError: CUDA error: out of memory",
        'RuntimeError: NVML_SUCCESS == r INTERNAL ASSERT FAILED at "../c10/cuda/CUDACachingAllocator.cpp":838',
        "Failed to CUDA calloc async 608 bytes",
        "RuntimeError: Can't allocate 1073741824 bytes on device 0.",
        "RuntimeError: [TensorRT-LLM][ERROR] CUDA runtime error in ::cudaMallocAsync(ptr, n, pool, s): out of memory",
        "E0801 02:00:00.123456 1 cuda_memory_manager.cc:115] failed to allocate CUDA memory with byte size 268435456 on"
        " GPU 0: CNMEM_STATUS_OUT_OF_MEMORY",
        "RuntimeError: No GPU memory available for the activations",
        "polars.exceptions.ComputeError: MemoryError: std::bad_alloc: out_of_memory: CUDA error at: /rmm/cuda.hpp",
        "Out of memory while trying to allocate 12884901888 bytes.",
    ],
)
def test_a_full_gpu_in_each_library_s_words(line: str) -> None:
    word = last_word(["Traceback (most recent call last):", line])
    assert word is not None
    assert word.cause == "gpu memory"


@pytest.mark.parametrize(
    "line",
    [
        # the host's memory, or no memory at all
        "OOM when allocating tensor with shape[200000,20000] on /job:localhost/device:CPU:0 by allocator cpu",
        "OOM when allocating tensor with shape[8] on /job:localhost/device:CPU:0 by allocator gpu_host_bfc",
        "RuntimeError: [enforce fail at alloc_cpu.cpp:75] . DefaultCPUAllocator: can't allocate memory: you tried to"
        " allocate 80000000000 bytes. Error code 12 (Cannot allocate memory)",
        "XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory allocating 34359738368 bytes.",
        "failed to alloc 8589934592 bytes on host: CUDA_ERROR_OUT_OF_MEMORY: out of memory",
        "RuntimeError: cudaHostAlloc failed: out of memory (pinned memory for the GPU)",
        "google.api_core.exceptions.ResourceExhausted: 429 RESOURCE_EXHAUSTED: Quota exceeded for quota metric 'Read'",
        "grpc.RpcError: StatusCode.RESOURCE_EXHAUSTED: Received message larger than max (4194305 vs. 4194304)",
        "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 262144, Hardware limit: 1",
        "RuntimeError: DataLoader worker is killed by signal: Out of shared memory (/dev/shm) for the GPU",
        "RuntimeError: CUDA error: cudaHostRegister failed: out of memory",
        "ray.exceptions.ObjectStoreFullError: The object store of the GPU worker has not enough memory for 8 GB",
        "OSError: Not enough disk space for the GPU cache",
        "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory: name=train_gpu",
        "ValueError: No GPU could be allocated to worker 3",
        "ValueError: KV cache dtype fp8 is not supported on this GPU",
        "OSError: [Errno 28] No space left on device",
        "main: Out of memory while trying to allocate room for block 7",
        "RuntimeError: CUDA error: an illegal memory access was encountered",
    ],
)
def test_other_memory(line: str) -> None:
    assert last_word(["Traceback (most recent call last):", line]) is None


@pytest.mark.parametrize(
    "line",
    [
        "RuntimeError: CUDA error: an illegal memory access was encountered",
        "NVRM: Xid (PCI:0000:00:1e): 13, pid=1234, Graphics Exception",
        "NVRM: Xid (PCI:0000:00:1e): 31, pid=1234, MMU Fault",
        "NVRM: Xid (PCI:0000:01:00): 154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)",
        "MemoryError: Unable to allocate 8.00 GiB for an array",
        "ValueError: no such data set",
    ],
)
def test_a_programs_own_fault(line: str) -> None:
    assert last_word([line]) is None


@pytest.mark.parametrize(
    ("line", "advice"),
    [
        ("torch.AcceleratorError: CUDA error: Invalid access of peer GPU memory over nvlink or a hardware error",
         MAY_BE_BROKEN),
        ("CUDARuntimeError: cudaErrorContained: it is contained", MAY_BE_BROKEN),
        ("train:7:9 [5] enqueue.cc:1402 NCCL WARN Cuda failure 721 'unrecognized error code'", MAY_BE_BROKEN),
        ("RuntimeError: CUDA error: hardware stack error", MAY_BE_BROKEN),
        ("CUDA_ERROR_EXTERNAL_DEVICE: An async error has occurred in external entity outside of CUDA", MAY_BE_BROKEN),
        ("jaxlib.XlaRuntimeError: INTERNAL: CUDA_ERROR_NVLINK_UNCORRECTABLE", BROKEN),
        ("RuntimeError: CUDA error: peer access is not supported between these two devices", None),
        ("RuntimeError: CUDA error: unspecified launch failure", None),
        ("train:7:9 [5] enqueue.cc:1402 NCCL WARN Cuda failure 719 'unspecified launch failure'", None),
    ],
)  # fmt: skip
def test_errors_that_nvidia_s_words_leave_open(line: str, advice: Advice | None) -> None:
    word = last_word(["[rank5]: Traceback (most recent call last):", f"[rank5]: {line}"])
    assert (word.advice if word else None) is advice


def test_the_last_cause_counts() -> None:
    word = last_word([TORCH, "trying again with half the batch", "CUDA error: uncorrectable ECC error encountered"])
    assert word is not None
    assert word.cause == "gpu"


@pytest.mark.parametrize(
    ("last", "is_cause"),
    [("RuntimeError: CUDA error: unspecified launch failure", True), ("KeyError: 'label'", False)],
)
def test_what_the_kernel_said_explains_an_error_of_cuda(last: str, is_cause: bool) -> None:
    xid = "NVRM: Xid (PCI:0000:00:1e): 79, pid=1234, GPU has fallen off the bus."
    word = last_word([xid, "Traceback (most recent call last):", '  File "train.py", line 1', last])
    assert (word is not None and word.line == xid) is is_cause


@pytest.mark.parametrize("lacks_command", [True, False])
def test_missing_nvidia_smi_is_a_cause_only_if_it_ended_the_container(lacks_command: bool) -> None:
    assert (last_word(["sh: 1: nvidia-smi: not found"], lacks_command=lacks_command) is not None) is lacks_command


@pytest.mark.parametrize(
    ("line", "advice"),
    [
        ("RuntimeError: No CUDA GPUs are available", NO_GPU),
        ("cudaErrorNoDevice: no CUDA-capable device is detected", NO_GPU),
        ("CUDA error: no CUDA-capable devices found", NO_GPU),
        ("RuntimeError: Unable to initialize backend 'cuda': FAILED_PRECONDITION: No visible GPU devices.", NO_GPU),
        ("lightning_fabric.utilities.exceptions.MisconfigurationException: No supported gpu backend found!", NO_GPU),
        ("RuntimeError: 0 active drivers ([]). There should only be one.", NO_GPU),
        ("RuntimeError: Failed to infer device type, please set the environment variable `VLLM_LOGGING_LEVEL`", NO_GPU),
        ("RuntimeError: no GPU was found on this machine", NO_GPU),
        ("Failed to initialize NVML: Unknown Error", LOST_GPU),
        ("Failed to initialize NVML: Driver Not Loaded", NO_DRIVER),
        ("pynvml.NVMLError_LibraryNotFound: NVML Shared Library Not Found", NO_DRIVER),
        ("RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 802: system not yet initialized", NO_FABRIC),
        ("Error 803: system has unsupported display driver / cuda driver combination", NO_DRIVER),
        ("Error 804: forward compatibility was attempted on non supported HW", OLD_DRIVER),
        ("RuntimeError: CUDA error: the provided PTX was compiled with an unsupported toolchain.", OLD_DRIVER),
        ("RuntimeError: CUDA driver version is insufficient for CUDA runtime version", OLD_DRIVER),
        ("RuntimeError: The NVIDIA driver on your system is too old (found version 11040).", OLD_DRIVER),
        ("RuntimeError: CUDA error: CUDA-capable device(s) is/are busy or unavailable", BUSY),
        ("F0801 caffe.cpp:1] Check failed: 46 vs. 0: all CUDA-capable devices are busy or unavailable", BUSY),
        ("RuntimeError: CUDA error: MPS client failed to connect to the MPS control daemon or the MPS server", BUSY),
        ("RuntimeError: No GPUs found. Physical devices cannot be modified", NO_GPU),
        ("failed call to cuInit: CUDA_ERROR_UNKNOWN: unknown error", NO_DRIVER),
        ("numba.cuda.cudadrv.error.CudaSupportError: CUDA driver library cannot be found.", NO_DRIVER),
        ("ImportError: libcuda.so.1: cannot open shared object file: No such file or directory", NO_DRIVER),
        ("ImportError: libnvidia-ml.so.1: cannot open shared object file: No such file or directory", NO_DRIVER),
    ],
)
def test_no_usable_gpu_in_each_library_s_words(line: str, advice: Advice) -> None:
    word = last_word(["Traceback (most recent call last):", line])
    assert word is not None
    assert word.advice is advice


@pytest.mark.parametrize(
    "line",
    [
        "RuntimeError: CUDA unknown error - this may be due to an incorrectly set up environment, e.g. changing env "
        "variable CUDA_VISIBLE_DEVICES after program start. Setting the available devices to be zero.",
        "AssertionError: Torch not compiled with CUDA enabled",
        "xgboost.core.XGBoostError: XGBoost version not compiled with GPU support.",
        "RuntimeError: CUDA error: no kernel image is available for execution on the device",
        "RuntimeError: CUDA error: invalid device ordinal",
        "No CUDA runtime is found, using CUDA_HOME='/usr/local/cuda'",
        "ImportError: libcudart.so.12: cannot open shared object file: No such file or directory",
        "ValueError: no such data set",
    ],
)
def test_what_is_not_the_node_s_fault(line: str) -> None:
    assert last_word(["Traceback (most recent call last):", line]) is None
