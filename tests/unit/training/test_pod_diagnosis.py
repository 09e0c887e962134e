"""The type that a failure gets from its last lines and its node."""

from __future__ import annotations

import pytest

from airflow_gpu_provider.errors import (
    BadGpu,
    DriverMissing,
    GpuError,
    GpuOutOfMemory,
    PodFailed,
    PodImageError,
    PodOutOfMemory,
)
from airflow_gpu_provider.training.life.diagnosis import diagnosed
from airflow_gpu_provider.training.wait.end import end_of
from tests.unit.clouds.google.test_gke_pool import pool as a_gke_pool
from tests.unit.training.test_pod_end import ended, pod
from tests.unit.training.test_pod_placement import a_pool

FAILED = PodFailed("Pod train-x: container base ended with exit code 1.", "Correct it.", pod="train-x", exit_code=1)


def diagnosis(*lines: str, bad_gpu: str = "", error: PodFailed = FAILED) -> PodFailed:
    return diagnosed(error, lines, pool=a_pool(), node="n1", bad_gpu=bad_gpu)


@pytest.mark.parametrize(
    ("instance_type", "types", "named"),
    [
        ("g6.xlarge", ["g6e.xlarge"], "its node has L4 with 24 GiB each"),
        ("g6e.xlarge", ["g6.xlarge", "g6e.xlarge"], "its node has L40S with 48 GiB each"),
        ("", ["g6.xlarge", "g6.2xlarge"], "its node has L4 with 24 GiB each"),
        ("", ["g6.xlarge", "g6e.xlarge"], None),
    ],
)
def test_gpu_memory_names_the_gpu_of_the_pod_s_own_node(
    instance_type: str, types: list[str], named: str | None
) -> None:
    pool = a_pool(instance_types=types)
    error = diagnosed(FAILED, ["CUDA out of memory"], pool=pool, node="n1", bad_gpu="", type_of=lambda _: instance_type)
    assert (named or "ran out of GPU memory (") in error.what
    assert error.what.count("GiB") == bool(named)


def test_gpu_memory_is_an_end_of_its_own_type() -> None:
    error = diagnosis("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB")
    assert type(error) is GpuOutOfMemory
    assert "L4 with 24 GiB" in error.what
    assert not error.retryable
    assert error.details["exit_code"] == 1


def test_an_engine_without_room_for_its_cache_gets_advice_of_its_own() -> None:
    error = diagnosis("ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`")
    assert type(error) is GpuOutOfMemory
    assert "L4 with 24 GiB" in error.what
    assert "max_model_len" in error.fix
    assert "batch" not in error.fix


def test_driver() -> None:
    error = diagnosis("CUDA driver version is insufficient for CUDA runtime version")
    assert type(error) is DriverMissing
    assert "n1" in error.what


@pytest.mark.parametrize(
    "line",
    [
        "ImportError: libcuda.so.1: cannot open shared object file: No such file or directory",
        "RuntimeError: Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU",
        "CUDARuntimeError: cudaErrorInsufficientDriver: CUDA driver version is insufficient for CUDA runtime version",
        "NVIDIA-SMI couldn't find libnvidia-ml.so library in your system.",
        "RuntimeError: jaxlib/cuda/versions_helpers.cc:135: operation cuInit(0) failed: Unknown CUDA error 303; "
        "cuGetErrorName failed. This probably means that JAX was unable to load the CUDA libraries.",
    ],
)
def test_an_image_that_does_not_look_where_gke_mounts_the_driver_s_library(line: str) -> None:
    on_gke = diagnosed(FAILED, [line], pool=a_gke_pool(), node="n1", bad_gpu="")
    assert type(on_gke) is DriverMissing
    assert "set LD_LIBRARY_PATH to that in env_vars" in on_gke.fix
    assert "LD_LIBRARY_PATH" not in diagnosis(line).fix


def test_nvidia_smi_that_the_runtime_did_not_find() -> None:
    what = 'Pod x: container base ended with exit code 127: exec: "nvidia-smi": executable file not found in $PATH.'
    assert type(diagnosis(error=PodFailed(what, "", exit_code=127))) is DriverMissing


RUNC = (
    "failed to create containerd task: failed to create shim task: OCI runtime create failed: runc create failed: "
    "unable to start container process: error during container init: error running prestart hook #0: exit status 1, "
    "stdout: , stderr: Auto-detected mode as 'legacy'\nnvidia-container-cli: "
)


def not_started(said: str) -> PodFailed:
    terminated = ended(128, reason="StartError", message=said)
    terminated["state"]["terminated"]["startedAt"] = "1970-01-01T00:00:00Z"
    end = end_of(pod(terminated, phase="Failed"))
    assert end is not None
    assert isinstance(end.error, PodFailed)
    return diagnosed(end.error, [], pool=a_pool(), node="n1", bad_gpu="")


@pytest.mark.parametrize(
    ("said", "kind", "happened"),
    [
        (
            f"{RUNC}requirement error: unsatisfied condition: cuda>=12.8, please update your driver: unknown",
            DriverMissing,
            "the NVIDIA driver of node n1 is too old for the CUDA of its image (nvidia-container-cli: requirement",
        ),
        (f"{RUNC}initialization error: nvml error: driver not loaded: unknown", DriverMissing, "no NVIDIA driver"),
        (f"{RUNC}initialization error: driver rpc error: timed out: unknown", DriverMissing, "no NVIDIA driver"),
        (f"{RUNC}detection error: nvml error: unknown error: unknown", DriverMissing, "no NVIDIA driver"),
        (f"{RUNC}device error: GPU-3c2c8a4e-0000-1111: unknown device: unknown", BadGpu, "a GPU of node n1 is broken"),
        (f"{RUNC}device error: MIG-3c2c8a4e-0000-1111: unknown device: unknown", DriverMissing, "container toolkit"),
        (f"{RUNC}mount error: failed to add device rules: unknown", DriverMissing, "container toolkit of node n1"),
        (
            "failed to create containerd task: could not apply required modification to OCI specification: failed to"
            " inject CDI devices: unresolvable CDI devices runtime.nvidia.com/gpu=GPU-1: unknown",
            DriverMissing,
            "container toolkit of node n1",
        ),
        (
            f"{RUNC.replace('cli', 'cli.real')}container error: cgroup subsystem: unknown",
            DriverMissing,
            "container toolkit",
        ),
        (
            "error running prestart hook #0: Using mode 'cdi'\ninvoking the NVIDIA Container Runtime Hook directly"
            " (e.g. specifying the docker --gpus flag) is not supported.: unknown",
            DriverMissing,
            "container toolkit",
        ),
        (
            "running createContainer hook #0: fork/exec /usr/bin/nvidia-cdi-hook: no such file or directory: unknown",
            DriverMissing,
            "container toolkit",
        ),
        (
            "OCI runtime create failed: error executing hook `/usr/local/nvidia/nvidia-cdi-hook` (exit code: 1)",
            DriverMissing,
            "container toolkit",
        ),
        ('while adding custom device "/dev/nvidia0": no such file or directory', DriverMissing, "no NVIDIA driver"),
        ("failed to apply OCI options: lstat /dev/nvidia-uvm: no such file or directory", DriverMissing, "no NVIDIA"),
        (f"{RUNC}detection error: nvml error: gpu is lost: unknown", BadGpu, "a GPU of node n1 is broken"),
        ("runc create failed: exec /app/train: exec format error: unknown", PodImageError, "another architecture"),
        (
            'OCI runtime create failed: exec: "nvidia-container-runtime": executable file not found in $PATH: unknown',
            DriverMissing,
            "container toolkit of node n1",
        ),
        (
            'runc create failed: exec: "nvidia-smi": executable file not found in $PATH: unknown',
            DriverMissing,
            "no NVIDIA driver",
        ),
        (
            "hook #0: exit status 1, stderr: /usr/local/nvidia/toolkit/nvidia-container-cli.real: /lib64/libc.so.6:"
            " version `GLIBC_2.27' not found (required by /usr/local/nvidia/toolkit/libnvidia-container.so.1): unknown",
            DriverMissing,
            "container toolkit of node n1",
        ),
        (
            "hook #0: exit status 127, stderr: nvidia-container-cli: error while loading shared libraries:"
            " libnvidia-container.so.1: cannot open shared object file: No such file or directory: unknown",
            DriverMissing,
            "container toolkit of node n1",
        ),
        (
            "prestart hook #0: fork/exec /usr/bin/nvidia-container-toolkit: exec format error: unknown",
            DriverMissing,
            "container toolkit of node n1",
        ),
        (
            "hook #0: exit status 1, stderr: /opt/falco/hook: version `GLIBC_2.34' not found: unknown",
            PodFailed,
            "not be started",
        ),
        ('runc create failed: exec: "/no/such": stat /no/such: no such file: unknown', PodFailed, "not be started"),
    ],
)
def test_container_that_its_runtime_could_not_start(said: str, kind: type[PodFailed], happened: str) -> None:
    error = not_started(said)
    assert type(error) is kind
    assert happened in error.what
    assert "could not be started" in error.what
    assert "this task's log" not in str(error)


def test_a_gpu_that_the_program_may_have_hidden_is_not_called_a_missing_driver() -> None:
    error = diagnosis("RuntimeError: No CUDA GPUs are available")
    assert type(error) is DriverMissing
    assert "it saw no GPU on node n1" in error.what
    assert "CUDA_VISIBLE_DEVICES" in error.fix
    assert "no NVIDIA driver" not in str(error)


@pytest.mark.parametrize("lines", [["CUDA error: uncorrectable ECC error encountered"], ["exit"], []])
def test_bad_gpu_by_log_or_by_node(lines: list[str]) -> None:
    error = diagnosis(*lines, bad_gpu="" if lines[:1] and "ECC" in lines[0] else "GpuUnhealthy=True")
    assert type(error) is BadGpu
    assert error.retryable
    assert "n1" in error.what


def test_memory_is_the_programs_even_on_a_bad_node() -> None:
    assert type(diagnosis("CUDA out of memory", bad_gpu="GpuUnhealthy=True")) is GpuOutOfMemory


def test_an_eviction_needs_no_other_explanation() -> None:
    evicted = PodFailed(
        "Pod x was evicted: its container base used 17196Mi.", "Enlarge the pool's disk.", reason="Evicted"
    )
    error = diagnosis("torch.OutOfMemoryError: CUDA out of memory.", bad_gpu="GpuUnhealthy=True", error=evicted)
    assert type(error) is PodFailed
    assert error.what == evicted.what
    assert error.fix.startswith("Enlarge the pool's disk. Its last lines:\n")
    assert error.details["last_lines"] == ["torch.OutOfMemoryError: CUDA out of memory."]


def test_other_failures_keep_their_last_ten_lines() -> None:
    error = diagnosis(*(f"line {number}" for number in range(100)))
    assert type(error) is PodFailed
    assert error.details["last_lines"] == [f"line {number}" for number in range(90, 100)]
    assert diagnosis() is FAILED
    assert error.fix.startswith("Correct it. Its last lines:\n")


def test_a_line_shows_what_a_terminal_would() -> None:
    error = diagnosis("\r".join(f"{at}%|####" for at in range(9000)), "KeyError: 'label'")
    assert str(error).endswith("Its last lines:\n8999%|####\nKeyError: 'label'")


def test_the_error_that_ended_the_program_decides() -> None:
    survived = ["torch.OutOfMemoryError: CUDA out of memory.", "skipping the batch", "step 7 loss 2.1"]
    later = ["Traceback (most recent call last):", '  File "train.py", line 1, in save', "ConnectionError: S3 is away"]
    assert type(diagnosis(*survived, *later)) is PodFailed
    assert diagnosis(*survived, *later).retryable


TRACE = ("Traceback (most recent call last):", '  File "/app/train.py", line 9, in loop')


@pytest.mark.parametrize(
    ("last", "kind"),
    [
        ("RuntimeError: DataLoader worker (pid 108439) is killed by signal: Killed. ", PodOutOfMemory),
        ("RuntimeError: DataLoader worker (pid(s) 7, 8) is killed by signal: Killed. ", PodOutOfMemory),
        ("joblib.externals.loky.process_executor.TerminatedWorkerError: it died. The exit codes of the workers are"
         " {SIGKILL(-9), EXIT(0)}", PodOutOfMemory),
        ("subprocess.CalledProcessError: Command '['python', 't.py']' died with <Signals.SIGKILL: 9>.", PodOutOfMemory),
        ("RuntimeError: DataLoader worker (pid 12) is killed by signal: Bus error. It is possible that", PodFailed),
        ("RuntimeError: unable to write to file </torch_61_3>: No space left on device (28)", PodFailed),
        ("OSError: [Errno 28] No space left on device: '/dev/shm/psm_1'", PodFailed),
        ("RuntimeError: DataLoader worker (pid 25902) is killed by signal: Segmentation fault. ", None),
        ("RuntimeError: triton: out of resource: shared memory, Required: 147456", None),
        ("KeyError: 'label'", None),
    ],
)  # fmt: skip
def test_a_process_that_was_killed_for_memory(last: str, kind: type[GpuError] | None) -> None:
    for reason, wanted in {"OOMKilled": kind or PodFailed, "Error": PodFailed}.items():
        ended_by = PodFailed("Pod x ended with exit code 1.", "Correct it.", exit_code=1, reason=reason)
        error = diagnosis(*TRACE, last, error=ended_by)
        assert type(error) is wanted
        assert ("memory limit" in error.fix.partition(" Its last lines:")[0]) == (kind is not None)


@pytest.mark.parametrize(
    "last",
    [
        "RuntimeError: DataLoader worker (pid(s) 12, 13) exited unexpectedly",
        "concurrent.futures.process.BrokenProcessPool: A process in the process pool was terminated abruptly",
    ],
)
def test_a_lost_process_was_killed_for_memory_where_the_kernel_says_so(last: str) -> None:
    for reason, kind in {"OOMKilled": PodOutOfMemory, "Error": PodFailed}.items():
        ended_by = PodFailed("Pod x ended with exit code 1.", "Correct it.", exit_code=1, reason=reason)
        assert type(diagnosis(*TRACE, last, error=ended_by)) is kind


def test_words_of_a_shell_whose_program_was_killed() -> None:
    for line in ("Killed", "/bin/sh: line 1:     7 Killed                  python train.py", "train.sh: 3: 12 Killed"):
        assert "memory limit" in diagnosis("epoch 3", line).fix
    assert "memory limit" not in diagnosis("Killed pods are counted.").fix


def test_the_memory_of_a_gpu_comes_before_a_process_that_was_killed_after_it() -> None:
    log = [*TRACE, "torch.OutOfMemoryError: CUDA out of memory.", "", "failed (exitcode: -9) local_rank: 0 (pid: 7)"]
    assert type(diagnosis(*log)) is GpuOutOfMemory


@pytest.mark.parametrize(
    "last",
    [
        "RuntimeError: CUDA error: no kernel image is available for execution on the device",
        "onnxruntime.capi.Fail: CUDA error cudaErrorNoKernelImageForDevice:no kernel image is available for execution",
        "cupy_backends.cuda.api.driver.CUDADriverError: CUDA_ERROR_NO_BINARY_FOR_GPU: no kernel image is available",
        "RuntimeError: CUDA error: invalid device function",
        "Error named symbol not found at line 233 in file /src/bitsandbytes/csrc/ops.cu",
        "ValueError: Unsupported compute capability: 12.0",
        "ptxas fatal   : Value 'sm_120' is not defined for option 'gpu-name'",
        "RuntimeError: ptxas failed: ptxas /tmp/x.ptx, line 5; fatal : Value 'sm_120a' is not defined for option"
        " 'gpu-name'",
        "nvcc fatal   : Unsupported gpu architecture 'compute_120'",
        "ValueError: Bfloat16 is only supported on GPUs with compute capability of at least 8.0. Your Tesla T4 GPU has"
        " compute capability 7.5.",
        "ValueError: The quantization method fp8 is not supported for the current GPU. Minimum capability: 89. Current"
        " capability: 75.",
        "RuntimeError: FlashAttention only supports Ampere GPUs or newer.",
        "NotImplementedError: requires device with capability > (8, 0) but your GPU has capability (7, 5) (too old)",
        "RuntimeError: torch._scaled_mm is only supported on CUDA devices with compute capability >= 9.0 or 8.9",
        "triton.compiler.errors.CompilationError: type fp8e4nv not supported in this architecture.",
        "ggml-cuda.cu:70: ERROR: CUDA kernel mul_mat has no device code compatible with CUDA arch 750.",
        "RuntimeError: cuDNN error: CUDNN_STATUS_NOT_SUPPORTED_ARCH_MISMATCH",
        "torch._inductor.exc.GPUTooOldForTriton: Found Tesla P100 which is too old to be supported by the triton GPU"
        " compiler, which is used as the backend. Triton only supports devices of CUDA Capability >= 7.0",
    ],
)
def test_an_image_without_code_for_this_gpu(last: str) -> None:
    error = diagnosis(*TRACE, last, "For debugging consider passing CUDA_LAUNCH_BLOCKING=1")
    assert type(error) is PodImageError
    assert "no code for the GPU of node n1" in error.what
    assert "another machine type" in error.fix
    several = diagnosed(FAILED, [last], pool=a_pool(instance_types=["g4dn.xlarge", "g6.xlarge"]), node="n1", bad_gpu="")
    assert type(several) is PodFailed
    assert several.retryable


@pytest.mark.parametrize(
    ("last", "says"),
    [
        ("exec /usr/bin/python3: exec format error", "another architecture"),
        ("standard_init_linux.go:228: exec user process caused: exec format error", "another architecture"),
        ("exec container process `/app/train`: Exec format error", "another architecture"),
        ("/bin/sh: 1: /opt/conda/bin/python: Exec format error", "another architecture"),
        ("/run.sh: line 3: ./train: cannot execute binary file: Exec format error", "another architecture"),
        ("OSError: [Errno 8] Exec format error: './tool'", None),
        ("AssertionError: Torch not compiled with CUDA enabled", "built without CUDA"),
        ("xgboost.core.XGBoostError: XGBoost version not compiled with GPU support.", "built without CUDA"),
        ("torch.AcceleratorError: CUDA error: an illegal memory access was encountered", None),
        ("RuntimeError: CUDA error: device-side assert triggered", None),
        ("ValueError: this model supports only one architecture", None),
        ("KeyError: 'label'", None),
    ],
)
def test_an_image_for_other_machines(last: str, says: str | None) -> None:
    error = diagnosis(*TRACE, last)
    assert type(error) is (PodImageError if says else PodFailed)
    assert (says or "exit code 1.") in error.what


def test_a_command_that_its_runtime_could_not_start_for_its_architecture() -> None:
    said = 'OCI runtime create failed: exec: "/train": exec format error: unknown'
    failed = end_of(pod(ended(128, reason="StartError", message=said), phase="Failed"))
    assert failed is not None
    assert isinstance(failed.error, PodFailed)
    assert type(diagnosis(error=failed.error)) is PodImageError


def test_what_a_program_warned_of_was_not_its_end() -> None:
    warned = "x.py:235: UserWarning: NVIDIA B200 with CUDA capability sm_100 is not compatible with PyTorch."
    assert type(diagnosis(warned, "INFO on the CPU", *TRACE, "KeyError: 'label'")) is PodFailed
