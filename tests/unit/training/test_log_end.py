"""Which error of a log ended its program, with logs as torch, torchrun, vLLM, JAX, TensorFlow and tqdm write them."""

from __future__ import annotations

import pytest

from airflow_gpu_provider.training.wait.log_end import last_error

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 22 GiB."
FRAMES = ['  File "/app/train.py", line 310, in step', "    loss = model(batch)", "           ^^^^^^^^^^^^"]
TRACEBACK = ["Traceback (most recent call last):", *FRAMES]
STEPS = [f"INFO step {at} loss 2.1" for at in range(40)]
S3 = 'botocore.exceptions.EndpointConnectionError: Could not connect to the endpoint URL: "https://k8s-ml.s3"'
LAUNCHER = [
    "W0801 02:00:00.1 1 torch/distributed/elastic/multiprocessing/api.py:897] Sending process 4 closing signal SIGTERM",
    "E0801 02:00:00.2 1 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: 1) local_rank: 0",
    *TRACEBACK,
    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
    "============================================================",
    "train.py FAILED",
    "Root Cause (first observed failure):",
    "[0]:",
    "  exitcode  : 1 (pid: 3)",
    "  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html",
]
VLLM = "(EngineCore_DP0 pid=272) ERROR 10-25 13:08:43 [core.py:708] "
PEER = [f"[rank1]: {line}" for line in TRACEBACK]
RANK = [f"[rank0]: {line}" for line in (*TRACEBACK, OOM)]
RICH = "Epoch 3/10 ━━━╸ 12/500 0:00:10"
TRIAL = "[W 2026-08-01 02:00:00,1] Trial 0 failed with parameters: {'lr': 0.1} because of the following error: CUDA"
BAR = "  3%|▎         | 3/100 [00:01<00:30,  3.2it/s, loss=2.1]"


def tells(*lines: str) -> bool:
    return any("CUDA out of memory" in line for line in last_error(lines))


@pytest.mark.parametrize(
    "lines",
    [
        [*STEPS, *TRACEBACK, OOM],
        [*STEPS, *TRACEBACK, OOM, "wandb: Run summary:", "wandb:   train/loss 2.1", "wandb: step 40"],
        [*STEPS, *TRACEBACK, OOM, BAR],
        [*(f"[rank0]: {line}" for line in (*TRACEBACK, OOM)), *LAUNCHER],
        [*TRACEBACK, OOM, "Exception ignored in: <function _Iterator.__del__ at 0x7f>", *TRACEBACK, "AssertionError"],
        [*TRACEBACK, OOM, "Exception in thread Thread-4 (_pin_memory_loop):", *TRACEBACK, "EOFError"],
        [*TRACEBACK, OOM, *TRACEBACK, "torch.distributed.DistBackendError: [1] is setting up NCCL communicator: "
         "store->get('0') got error: Connection reset by peer"],
        [*TRACEBACK, OOM, *TRACEBACK, "subprocess.CalledProcessError: Command '['python']' returned exit status 1."],
        [*TRACEBACK, OOM, "", "The above exception was the direct cause of the following exception:", *TRACEBACK,
         "RuntimeError: training failed"],
        [*TRACEBACK, OOM, "During handling of the above exception, another exception occurred:", *TRACEBACK, S3],
        [*(VLLM + line for line in (*TRACEBACK, OOM)), *TRACEBACK,
         "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"],
        ["  + Exception Group Traceback (most recent call last):", "  |   File \"a.py\", line 1, in <module>",
         "  | ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception)", "  +-+---------------- 1 ----------",
         "    | Traceback (most recent call last):", "    |   File \"a.py\", line 2, in f", f"    | {OOM}",
         "    +------------------------------------"],
        [f"{BAR}Traceback (most recent call last):", *FRAMES, OOM, BAR],
        [*TRACEBACK, S3, *STEPS, "ggml_cuda: CUDA out of memory", "main: error: unable to load model"],
        ["2026-08-01 02:00:00,123 - train - ERROR - CUDA out of memory", "INFO: uploading the logs"],
        ["terminate called after throwing an instance of 'c10::Error'", "  what():  CUDA out of memory", "frame #0: x"],
        ["CUDA out of memory\r"],
        ["\x1b[31mtorch.OutOfMemoryError\x1b[0m: CUDA out of memory"],
        [*STEPS, "2026-08-01 02:00:01,123 - train - ERROR - step 512: CUDA out of memory. Tried to allocate 2 GiB"],
        [*STEPS, "CUDA out of memory at step 512, giving up"],
        [*STEPS, *TRACEBACK, OOM, "Peak buffers:", *(f"\tBuffer {at}:" for at in range(99))],
        [RICH, *TRACEBACK, OOM, RICH.replace(":10", ":11")],
        [*RANK, "step 41 loss 2.0", "step 42 loss 2.0", *LAUNCHER],
        [line for pair in zip(RANK, [*PEER, "[rank1]: torch.distributed.DistBackendError: NCCL communicator was aborted"
         " on rank 1."], strict=True) for line in pair],
        [*RANK[:2], "step 41 loss 2.0", *RANK[2:]],
        [*RANK, *PEER, "[rank1]: torch.distributed.DistStoreError: wait timeout after 600000ms, keys: /default_pg/0"],
        [*RANK, *PEER, "[rank1]: torch.distributed.DistNetworkError: failed to recv, got 0 bytes"],
        [*RANK, *PEER, "[rank1]: torch.distributed.DistBackendError: NCCL error in: a.cpp:77, unhandled system error,"
         " NCCL version 2.26.2", "ncclSystemError: System call (e.g. socket, malloc) or external library call failed",
         "Last error:", "socketPollConnect: connect to 10.0.0.1<43021> returned Connection refused"],
        [*RANK, *PEER, "[rank1]: RuntimeError: Rank 1 successfully reached monitoredBarrier, but received errors while"
         " waiting for send/recv from rank 0."],
        ["  + Exception Group Traceback (most recent call last):", "  |   File \"a.py\", line 1, in <module>",
         "  | ExceptionGroup: unhandled errors in a TaskGroup (2 sub-exceptions)",
         "  +-+---------------- 1 ----------------", "    | Traceback (most recent call last):", f"    | {OOM}",
         "    +---------------- 2 ----------------", "    | Traceback (most recent call last):",
         "    | asyncio.exceptions.CancelledError", "    +------------------------------------"],
        ["WARNING:root:gradient overflow", *TRACEBACK, OOM, "INFO:root:closing the log"],
        ["WARNING:root:gradient overflow", *TRACEBACK, OOM,
         "ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: 1) local_rank: 0 (pid: 3)"],
        ["CUDA out of memory at batch 512, trying 256", "CUDA out of memory at batch 256, giving up"],
        [*TRACEBACK, f"{OOM} Try reducing the batch size to 8, which may help."],
        [f"{OOM} May be solved by lowering the batch size", "main: error: aborting"],
        [*RANK, "[rank1]: the store does not answer, retrying", *LAUNCHER],
        ["CUDA out of memory: the batch size is already reduced to 1", "main: error: aborting"],
        [*TRACEBACK, OOM, "WARNING:urllib3.connectionpool:Retrying (Retry(total=4)) after connection broken: /runs"],
    ],
    ids=["alone", "wandb", "its own bar", "torchrun", "shutdown", "thread", "peer", "launcher", "cause", "context",
         "vLLM", "group", "after a bar", "native", "logged", "C++", "CRLF", "colours", "logged with a step",
         "printed with a step", "XLA's buffers", "a bar of rich", "another rank works", "interleaved", "in between",
         "peer's store", "peer's network", "peer's NCCL", "peer's barrier", "of a group", "after a warning",
         "after a warning, launched", "no smaller batch", "advice", "printed advice", "another rank retries",
         "the smallest batch", "an upload at its end"],
)  # fmt: skip
def test_an_error_that_ended_the_program(lines: list[str]) -> None:
    assert tells(*lines)


@pytest.mark.parametrize(
    "lines",
    [
        [OOM, "attempting to recover from OOM in forward/backward pass", *STEPS, *TRACEBACK, S3],
        [*TRACEBACK, OOM, *STEPS],
        [*TRACEBACK, OOM, *TRACEBACK, S3],
        [*TRACEBACK, OOM, *STEPS, *TRACEBACK, S3, *LAUNCHER],
        [*TRACEBACK, OOM, "Segmentation fault (core dumped)", *STEPS],
        [*TRACEBACK, OOM, "skipping this batch"],
        [*TRACEBACK, OOM, BAR, BAR.replace("3", "4"), BAR.replace("3", "5")],
        [*TRACEBACK, OOM, f"{BAR}\r{BAR.replace('3', '4')}\r{BAR.replace('3', '5')}"],
        ["CUDA out of memory, trying with half the batch", "KeyError: 'label'"],
        ["CUDA out of memory", *(f"wrote part {at}" for at in range(30))],
        [*TRACEBACK, OOM, *(f"wrote part {at}" for at in range(90))],
        ["WARNING:root:CUDA out of memory"],
        ["2026-08-01 02:00:00,123 [WARNING] train: CUDA out of memory"],
        ["/app/train.py:12: UserWarning: CUDA out of memory"],
        ["2026-08-01 02:00:00.123456: W tensorflow/core/bfc_allocator.cc:290] CUDA out of memory, not a failure"],
        ["W0801 02:00:00.1 1 torch/inductor.py:9] CUDA out of memory"],
        ['{"level": "info", "message": "CUDA out of memory in a trial"}'],
        ["Exception ignored in: <function f>", "Traceback (most recent call last):", OOM],
        [*TRACEBACK[:3], '    raise RuntimeError("CUDA out of memory")', S3],
        [TRIAL, *TRACEBACK, OOM, "[I 2026-08-01 02:10:00,2] Trial 1 finished with value: 0.5.", "upload failed"],
        ["ERROR:train:the batch does not fit, skipping it", *TRACEBACK, OOM, "error: could not write the checkpoint"],
        [*TRACEBACK, OOM, "[121/500] lr 0.1", "could not write the model: no route to host"],
        ["If you see CUDA out of memory, lower the batch size.", "error: no such data set"],
        [*TRACEBACK, OOM, "313/313 ━━━━━━━━━━━━ 3s 9ms/step", "could not write the model: no route to host"],
        [*RANK, "I0801 02:00:00.1 1 torch/distributed/elastic/agent/server/api.py:895] [default] Worker group FAILED."
         " 2/3 attempts left; will restart worker group", "upload failed: no route to host"],
        [*RANK, "[rank0]: step 41 loss 2.0", "upload failed: no route to host"],
        ["WARNING:root:batch 512 does not fit", *TRACEBACK, OOM, "ERROR:root:could not write the model"],
        ["2026-08-01 02:00:00,1 - train - WARNING - no", *TRACEBACK, OOM, "2026-08-01 02:00:09,1 - train - ERROR - no"],
        ["CUDA out of memory at batch 512, trying 256", "fatal: cannot write /ckpt/10: input/output error"],
        ["CUDA out of memory at batch 512, trying 256", *TRACEBACK, S3],
        ["CUDA out of memory at batch 512, trying 256", *TRACEBACK, "EOFError"],
        ["[rank0]: CUDA out of memory at batch 512, trying 256", *PEER, "[rank1]: EOFError", *LAUNCHER],
        ["CUDA out of memory", "Batch size 512 failed, trying batch size 256", "could not write the model"],
        ["CUDA out of memory, reducing batch size from 512 to 256", "could not write the model"],
        ["CUDA out of memory detected. Train microbatch size will be decreased from 8 -> 4.", "upload failed"],
        ["Step 400, CUDA out of memory - batch removed", "upload failed: no route to host"],
        ["Attempting to copy inputs of <function f> to CPU due to CUDA out of memory", "upload failed"],
        ["CUDA out of memory in the assigner, using CPU", "upload failed: no route to host"],
    ],
    ids=["recovered", "went on", "another", "launched", "later", "skipped", "bars", "one bar", "no header", "far",
         "far too", "warning", "bracket", "warnings", "TensorFlow", "glog", "JSON", "shutdown", "a frame's source",
         "Optuna", "logged and skipped", "a counter", "a hint", "Keras", "restarted", "the same rank works",
         "logged as a warning", "logged as a warning with a time", "printed", "printed before another",
         "printed before a report", "printed by a rank", "Lightning", "a smaller batch", "Composer", "OpenNMT",
         "Detectron2", "Ultralytics"],
)  # fmt: skip
def test_an_error_that_the_program_survived(lines: list[str]) -> None:
    assert not tells(*lines)


@pytest.mark.parametrize(
    "lines",
    [
        ["torch.distributed.DistBackendError: NCCL error in: a.cpp:1, unhandled cuda error (run with NCCL_DEBUG=INFO "
         "for details), NCCL version 2.18.1", "ncclUnhandledCudaError: Call to CUDA function failed.", "Last error:",
         "Cuda failure 2 'out of memory'"],
        ["train:1:2 [0] include/alloc.h:233 NCCL WARN Cuda failure 2 'out of memory'", *TRACEBACK,
         "torch.distributed.DistBackendError: NCCL error in: a.cpp:1, unhandled cuda error, NCCL version 2.18.1",
         "ncclUnhandledCudaError: Call to CUDA function failed."],
    ],
)  # fmt: skip
def test_nccl_names_its_cause_in_a_line_of_its_own(lines: list[str]) -> None:
    assert any("Cuda failure 2" in line for line in last_error(lines))


def test_a_log_that_tells_of_no_error() -> None:
    assert last_error([]) == []
    assert last_error(["step 1 loss 2.0"]) == []
