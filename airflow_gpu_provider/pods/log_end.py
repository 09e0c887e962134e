"""Which lines of a log tell why its program ended: those of its last error, not of one that it survived. Pure.

A Python program ends with a traceback, its chain of exceptions, and what libraries print after it; of another program
only the last lines count. Passed over: warnings, what only reports that another process has ended (a launcher's error,
a peer's lost connection), and errors after which the program went on.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from airflow_gpu_provider.cluster.pod_log import shown

_NEAR = 15
"""How many lines from the end an error counts that is in no traceback: programs print a few more before they exit."""

_FAR = 60
"""And one in a traceback: torchrun, wandb and others print more after it."""

# What a launcher puts before each line: torch ([rank0]:), torchrun ([default0]:), Ray and vLLM ((train pid=7)), mpirun.
_SENDER = re.compile(r"^(?:\[(?:rank|default)\d+\]:|\([^()]*\bpid=\d+[^()]*\)|\[\d+,\d+\]<std\w+>:) ?")
_GROUP = re.compile(r"^ {2,}(?:\| ?|\+ )")  # an ExceptionGroup's indentation

# What a logger puts before a message: logging, loguru, vLLM, glog and TensorFlow, in their default formats.
_LEVEL = re.compile(
    r"^(?:(?!Error|Exception).){0,60}?(?<![\w=.])(?:"
    r"(?P<quiet>TRACE|DEBUG|INFO|NOTICE|WARN|WARNING|\[(?:Debug|Info|Warning)\])|(?P<loud>ERROR|CRITICAL|FATAL))(?!\w)"
    r"\]?[ ]*[:|-]?[ ]?(?:\d[\d:.,-]* (?:\d[\d:.,-]* )?)?(?:\[[^\]]*\] ?)?(?:[\w.:<>-]+[ ]?[|:-] )?"
)
_GLOG = re.compile(r"^\[?(?:\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: )?(?P<level>[IWEF])(?:\d{4,8} |(?= [\w./]+:\d+\]))")
_JSON_LEVEL = re.compile(r'"level(?:name)?"\s*:\s*"(?:trace|debug|info|notice|warn|warning)"', re.IGNORECASE)
_WARNING = re.compile(r"^(?:\S+:\d+: )?\w*warning:", re.IGNORECASE)  # Python's module `warnings`
_NCCL = re.compile(r"\bNCCL WARN\b")  # the level of NCCL's own errors

_TRACEBACK = re.compile(r"Traceback \(most recent call last\)")
_CHAINED = re.compile(r"^(?:The above exception was the direct cause|During handling of the above exception)")
_IN_TRACEBACK = re.compile(r"^(?:\s|[│╭╰❱|+^~]|\[Previous line repeated)")
_EXCEPTION = re.compile(
    r"^(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?:Error|Exception|Exhausted|Expired|Interrupt|Exit|Failure|Died|Timeout)"
    r"(?:\(\w+\))?(?::\s|:?$)|^terminate called after throwing|^panic: |^thread '.*' panicked at"
)
_OF_NCCL = re.compile(r"^nccl\w+Error: ")  # the second line of torch's DistBackendError
_OF_NOBODY = re.compile(r"^(?:Exception ignored in|Error in atexit)")  # printed while Python shuts down

# Errors that only say that another process has ended, or that point to an error printed before them.
_REPORTS = re.compile(
    "|".join(
        (
            r"ChildFailedError|\bSignalException\b",  # torch/distributed/elastic
            r"Process(?:Exited|Raised)Exception",  # torch/multiprocessing/spawn.py
            r"CalledProcessError|BrokenProcessPool|BrokenPipeError|\bEOFError|SystemExit|KeyboardInterrupt",  # Python
            r"DataLoader worker \(pid",  # torch/utils/data/dataloader.py
            r"Connection (?:reset|closed) by peer|Socket Timeout",  # c10d's TCPStore, gloo
            r"ncclRemoteError|remote process exited|NCCL communicator was aborted|[Ww]atchdog (?:caught|thread)",
            r"unhandled cuda error|ncclUnhandledCudaError",  # NCCL names it in lines of its own, src/include/checks.h
            r"Engine core initialization failed|Engine process failed|EngineDeadError|stack trace.*root cause",  # vLLM
            r"(?:Ray)?Actor(?:Died)?Error|WorkerCrashedError|TrainingFailedError",  # Ray
            r"Failed to load model from file|Failed to create llama_context",  # llama-cpp-python
        )
    )
)

# What a program prints that has survived an error: it counts on, or says so.
_BAR = re.compile(r"(?P<of>.{0,100}?)\s*(?P<at>\d{1,3})%\|")  # tqdm
_COUNTS = re.compile(
    r"\b(?:step|epoch|iter(?:ation)?|batch)s?\b['\"]?\W{0,4}\d|\bloss\b['\"]?\s*[:= ]\s*-?\d", re.IGNORECASE
)
_RECOVERS = re.compile(
    r"\b(?:retrying|trying again|recover(?:ing|ed|s)?|skip(?:ping|ped|s)|fall(?:s|ing)? back|continuing|resuming"
    r"|ignoring)\b",
    re.IGNORECASE,
)
_CLOSING = re.compile(r"^(?:wandb:|frame #|#\d+ )")  # a summary, a stack of C++


def last_error(lines: Sequence[str]) -> list[str]:
    """Return the lines that tell which error ended the program, the last one first; none if they tell of none."""
    return [line.shown for line in _Log([_Line.parse(raw) for raw in lines]).last_error()]


@dataclass(frozen=True, kw_only=True)
class _Line:
    """One line of a log.

    Attributes:
        text: Without what a launcher and a logger have put before it.
        is_quiet: It was logged as less than an error.
    """

    raw: str
    shown: str
    text: str
    is_quiet: bool

    @classmethod
    def parse(cls, raw: str) -> _Line:
        what = shown(raw)
        text = _GROUP.sub("", _SENDER.sub("", what))
        if _NCCL.search(text):
            is_quiet = False
        elif found := _GLOG.match(text):
            is_quiet = found["level"] in "IW"
        elif _WARNING.match(text) or _JSON_LEVEL.search(text):
            is_quiet = True
        elif found := _LEVEL.match(text):
            text, is_quiet = text[found.end() :], found["loud"] is None
        else:
            is_quiet = False
        return cls(raw=raw, shown=what, text=text, is_quiet=is_quiet)


@dataclass(kw_only=True)
class _Failure:
    """An exception and those that it is chained to: the lines that name them, and the first line of all."""

    begins: int
    named: list[int]


@dataclass
class _Log:
    """The lines, and which of them are frames of a traceback, or report another process's end."""

    lines: Sequence[_Line]
    passed_over: set[int] = field(default_factory=set)

    def last_error(self) -> Iterator[_Line]:
        counted = self._of_last_failure()
        survived = self._last_work()
        return (self.lines[at] for at in reversed(counted) if at > survived and not self.lines[at].is_quiet)

    def _of_last_failure(self) -> Sequence[int]:
        """Return the lines of the last failure that is the program's own; of a log without any, its last lines."""
        for failure in reversed(self._failures):
            if not self._only_reports(failure):
                since = self._told(failure.named[0])
                return since if len(since) <= _FAR else since[-_NEAR:]
            self.passed_over.update(range(failure.begins, failure.named[-1] + 1))
        return self._told(0)[-_NEAR:]

    def _told(self, begins: int) -> list[int]:
        """Return the lines from there on that the program has printed itself."""
        own = (at for at in range(begins, len(self.lines)) if at not in self.passed_over)
        return [at for at in own if not _CLOSING.match(self.lines[at].text)]

    def _last_work(self) -> int:
        """Return the last line that shows that the program went on after what came before it; -1 if none does."""
        last = -1
        bars: dict[str, tuple[int, str]] = {}
        for at in self._told(0):
            line = self.lines[at]
            if moved := [bar for part in line.raw.split("\r") if (bar := _BAR.match(part[:200]))]:
                for bar in moved:
                    before, count = bars.get(bar["of"], (at, bar["at"]))
                    last = max(last, before) if count != bar["at"] else last
                    bars[bar["of"]] = (at, bar["at"])
            elif not _EXCEPTION.match(line.text) and (_COUNTS.search(line.text) or _RECOVERS.search(line.text)):
                last = at
        return last

    @cached_property
    def _failures(self) -> list[_Failure]:
        """The failures in their order; the frames of their tracebacks are passed over."""
        found: list[_Failure] = []
        begins: int | None = None  # of the traceback that is open
        is_chained = False
        for at, line in enumerate(self.lines):
            if _TRACEBACK.search(line.text):
                begins = at
            elif _CHAINED.match(line.text):
                is_chained = True
            elif begins is None or not _IN_TRACEBACK.match(line.text):
                if not line.is_quiet and (begins is not None or _EXCEPTION.match(line.text)):
                    if found and (is_chained or self._is_of_nccl(at, found[-1])):
                        found[-1].named.append(at)
                    else:
                        found.append(_Failure(begins=at if begins is None else begins, named=[at]))
                    is_chained = False
                begins = None
                continue
            self.passed_over.add(at)
        return found

    def _is_of_nccl(self, at: int, before: _Failure) -> bool:
        return before.named[-1] == at - 1 and _OF_NCCL.match(self.lines[at].text) is not None

    def _only_reports(self, failure: _Failure) -> bool:
        """Return True if it says only that another process has ended, or is from Python's own shutdown."""
        before = self.lines[failure.begins - 1].text if failure.begins else ""
        is_of_nobody = _OF_NOBODY.match(before) is not None
        return is_of_nobody or all(_REPORTS.search(self.lines[at].text) for at in failure.named)
