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

from airflow_gpu_provider.cluster.model.pod_log import shown

_NEAR = 15
"""How many lines from the end an error counts that is in no traceback: programs print a few more before they exit."""

_FAR = 60
"""And one in a traceback: torchrun, wandb and others print more after it, and XLA lists its buffers, indented."""

# What a launcher puts before each line: torch ([rank0]:), torchrun ([default0]:), Ray and vLLM ((train pid=7)), mpirun.
_SENDER = re.compile(r"^(?:\[(?:rank|default)\d+\]:|\([^()]{0,80}?\bpid=\d{1,10}[^()]{0,80}\)|\[\d+,\d+\]<std\w+>:) ?")
_GROUP = re.compile(r"^ {2,}(?:\| ?|\+ )")  # an ExceptionGroup's indentation
_OF_GROUP = re.compile(r"^ {2,}[|+]")

# What a logger puts before a message: logging, loguru, vLLM, glog and TensorFlow, in their default formats.
_LEVEL = re.compile(
    r"^(?:(?!Error|Exception).){0,60}?(?<![\w=.])(?:"
    r"(?P<quiet>TRACE|DEBUG|INFO|NOTICE|WARN|WARNING|\[(?:Debug|Info|Warning)\])|(?P<loud>ERROR|CRITICAL|FATAL))(?!\w)"
    r"\]?[ ]*[:|-]?[ ]?(?:\d[\d:.,-]* (?:\d[\d:.,-]* )?)?(?:\[[^\]]*\] ?)?(?:[\w.:<>-]+[ ]?[|:-] )?"
)
_GLOG = re.compile(r"^\[?(?:\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: )?(?P<level>[IWEF])(?:\d{4,8} |(?= [\w./]+:\d+\]))")
_JSON_LEVEL = re.compile(r'"level(?:name)?"\s*:\s*"(?:trace|debug|info|notice|warn|warning)"', re.IGNORECASE)
_WARNING = re.compile(r"^(?:\S+:\d+: )?\w*warning:", re.IGNORECASE)  # Python's module `warnings`
_HINT = re.compile(r"^(?:tip|hint|note)\b\W|^(?:if|in case) (?:you|it|this)\b", re.IGNORECASE)
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
            r"ChildFailedError|\bSignalException\b|torch[./]distributed[./]elastic",
            r"\bExceptionGroup\b|\bCancelledError\b",  # Python: a group of errors, and a task that ended for another's
            r"Process(?:Exited|Raised)Exception",  # torch/multiprocessing/spawn.py
            r"Backend 'cuda' is not in the list of known backends",  # jax: _src/xla_bridge.py, after its plugin's error
            r"CalledProcessError|BrokenProcessPool|BrokenPipeError|\bEOFError|SystemExit|KeyboardInterrupt",  # Python
            r"DataLoader worker \(pid",  # torch/utils/data/dataloader.py
            r"Connection (?:reset|closed) by peer|Socket Timeout|Dist(?:Network|Store)Error",  # c10d's TCPStore, gloo
            r"[Ww]ait timeout after|monitoredBarrier|[Bb]roken pipe",
            r"ncclRemoteError|remote process exited|NCCL communicator was aborted|[Ww]atchdog (?:caught|thread)",
            r"unhandled system error|ncclSystemError|socketPollConnect|Proxy Call to rank",  # nccl: src/misc/socket.cc
            r"unhandled cuda error|ncclUnhandledCudaError",  # NCCL names it in lines of its own, src/include/checks.h
            r"Engine core initialization failed|Engine process failed|EngineDeadError",  # vLLM
            r"stack trace.{0,60}root cause",  # vLLM
            r"(?:Ray)?Actor(?:Died)?Error|WorkerCrashedError|TrainingFailedError",  # Ray
            r"Failed to load model from file|Failed to create llama_context",  # llama-cpp-python
        )
    )
)
# But what SIGKILL ends, or a bus error, leaves no error of its own to look for.
_LEFT_NO_ERROR = re.compile(r"by signal: (?:Killed|Bus error)|<Signals\.SIGKILL")

# What a program prints that has survived an error: it counts on, or says so.
_BAR = re.compile(r"^(?P<of>.{0,100}?)(?P<at>\d{1,3})%\|")  # tqdm
_COUNTS = re.compile(
    r"\b(?:step|epoch|iter(?:ation)?|batch|trial|fold|episode|round|chunk|shard|sample|example)s?\b['\"]?\W{0,4}\d"
    r"|\bloss\b['\"]?\s{0,8}[:= ]\s{0,8}-?\d|^\W{0,2}\d+/\d+\b",  # keras: utils/progbar.py
    re.IGNORECASE,
)
_PACE = re.compile(  # what of a bar changes while nothing moves
    r"(?<!\d)\d{1,6}:\d\d(?::\d\d)?|(?<![\d.])\d[\d.]{0,15} ?\w{0,15}/\w{1,15}"
)
_FAILS = re.compile(r"\b(?:error|fail\w*|abort\w*|killed|exception|out of memory|OOM)\b", re.IGNORECASE)
_RECOVERS = re.compile(
    r"\b(?:retrying(?! \(Retry\()|retry with|(?<!while )trying (?!to\b)|attempting to (?:recover|copy)"
    r"|recover(?:ing|ed|s)|skip(?:ping|ped|s)|fall(?:s|ing)? back|continuing|resuming|ignoring"
    r"|(?:using|switching to) (?:the )?CPU|batch removed|(?:will restart|restarting) worker group)\b",
    re.IGNORECASE,  # torch: distributed/elastic/agent/server/api.py; OpenNMT-py#2550; detectron2: utils/memory.py
)
_SHRINKS = re.compile(  # composer: trainer.py
    r"\b(?:reduc|lower|decreas|halv|shrink)ing\b|\b(?:reduced|lowered|decreased|halved) (?:from|to)\b", re.IGNORECASE
)
_IS_NO_STEP = re.compile(  # but a hint of what may help, or the last step
    r"\b(?:try|consider\w*|suggest\w*|recommend\w*|please|may|might|should|help\w*|already|even"
    r"|(?:by|or) (?:reduc|lower|decreas|halv|shrink)ing)\b",
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
        sender: What a launcher has put there.
        is_quiet: It was logged as less than an error.
        is_loud: It was logged as an error.
        is_warning: It was logged as a warning.
        is_of_group: It belongs to the traceback of an ExceptionGroup.
    """

    raw: str
    shown: str
    text: str
    sender: str
    is_quiet: bool
    is_loud: bool
    is_warning: bool
    is_of_group: bool

    @property
    def is_work(self) -> bool:
        """It counts what the program does, and not where it failed."""
        if self.is_loud or _EXCEPTION.match(self.text) or _FAILS.search(self.text):
            return False
        return _COUNTS.search(self.text) is not None

    @property
    def recovers(self) -> bool:
        """It says that the program goes on after an error, and is not a hint of what might help."""
        if _EXCEPTION.match(self.text):
            return False
        shrinks = _SHRINKS.search(self.text) and not _IS_NO_STEP.search(self.text)
        return bool(shrinks or _RECOVERS.search(self.text))

    @classmethod
    def parse(cls, raw: str) -> _Line:
        what = shown(raw)
        sender = found[0] if (found := _SENDER.match(what)) else ""
        sent = what.removeprefix(sender)
        text = _GROUP.sub("", sent)
        is_quiet = is_loud = is_warning = False
        if _NCCL.search(text):
            is_loud = True
        elif found := _GLOG.match(text):
            is_quiet, is_loud, is_warning = found["level"] in "IW", found["level"] in "EF", found["level"] == "W"
        elif _WARNING.match(text) or _HINT.match(text) or _JSON_LEVEL.search(text):
            is_quiet, is_warning = True, text.startswith("WARNING:")
        elif found := _LEVEL.match(text):
            text, is_quiet, is_loud = text[found.end() :], found["loud"] is None, found["loud"] is not None
            is_warning = "WARN" in (found["quiet"] or "").upper()
        return cls(
            raw=raw,
            shown=what,
            text=text,
            sender=sender,
            is_quiet=is_quiet,
            is_loud=is_loud,
            is_warning=is_warning,
            is_of_group=_OF_GROUP.match(sent) is not None,
        )


@dataclass(kw_only=True)
class _Failure:
    """An exception and those that it is chained to: the lines that name them, and the first line of all."""

    sender: str
    begins: int
    named: list[int]


@dataclass
class _Traceback:
    """Where one sender's tracebacks are: the first line of the one that is open, and the failure before."""

    begins: int | None = None
    is_chained: bool = False
    is_of_group: bool = False
    last: _Failure | None = None


@dataclass
class _Log:
    """The lines, and which of them are frames of a traceback, or report another process's end."""

    lines: Sequence[_Line]
    passed_over: set[int] = field(default_factory=set)

    def last_error(self) -> Iterator[_Line]:
        sender, considered = self._of_last_failure()
        survived = self._last_work(sender)
        return (self.lines[at] for at in reversed(considered) if at > survived and not self.lines[at].is_quiet)

    def _of_last_failure(self) -> tuple[str, Sequence[int]]:
        """Return the lines of the last failure that ended the program, and its sender; without one, the last lines."""
        for failure in reversed(self._failures):
            if not self._ended_nothing(failure):
                since = self._own_lines(failure.named[0])
                is_near = sum(not self.lines[at].text[:1].isspace() for at in since) <= _FAR
                return failure.sender, since if is_near else since[-_NEAR:]
            its = range(failure.begins, failure.named[-1] + 1)
            self.passed_over.update(at for at in its if self.lines[at].sender == failure.sender)
        return "", self._own_lines(0)[-_NEAR:]

    def _own_lines(self, begins: int) -> list[int]:
        """Return the lines from there on that the program has printed itself."""
        own = (at for at in range(begins, len(self.lines)) if at not in self.passed_over)
        return [at for at in own if not _CLOSING.match(self.lines[at].text)]

    def _last_work(self, sender: str) -> int:
        """Return the last line that shows that the program went on after what came before it; -1 if none does.

        Where a launcher names its processes, only what this one has printed shows that: the others go on for a while.
        """
        last = -1
        seen: set[str] = set()  # a bar is printed once more, as it was, when its program ends
        bars: dict[str, tuple[int, str]] = {}
        for at in self._own_lines(0):
            line = self.lines[at]
            if moved := [bar for part in line.raw.split("\r") if "%|" in part and (bar := _BAR.match(part))]:
                for bar in moved:
                    of = bar["of"].rstrip()
                    before, count = bars.get(of, (at, bar["at"]))
                    last = max(last, before) if count != bar["at"] else last
                    bars[of] = (at, bar["at"])
            elif line.is_work and sender in ("", line.sender):
                last = last if (text := _PACE.sub("", line.text)) in seen else at
                seen.add(text)
            elif line.recovers and (not line.sender or sender in ("", line.sender)):
                last = at
        return last

    @cached_property
    def _failures(self) -> list[_Failure]:
        """The failures in their order; the frames of their tracebacks are passed over."""
        found: list[_Failure] = []
        senders: dict[str, _Traceback] = {}
        for at, line in enumerate(self.lines):
            traceback = senders.setdefault(line.sender, _Traceback())
            is_of_same_group, traceback.is_of_group = traceback.is_of_group and line.is_of_group, line.is_of_group
            if _TRACEBACK.search(line.text):
                traceback.begins = at
            elif _CHAINED.match(line.text):
                traceback.is_chained = True
            elif traceback.begins is None or not _IN_TRACEBACK.match(line.text):
                if not line.is_quiet and (traceback.begins is not None or _EXCEPTION.match(line.text)):
                    if (last := traceback.last) and (
                        traceback.is_chained or is_of_same_group or self._is_of_nccl(at, last)
                    ):
                        last.named.append(at)
                    else:
                        begins = at if traceback.begins is None else traceback.begins
                        traceback.last = _Failure(sender=line.sender, begins=begins, named=[at])
                        found.append(traceback.last)
                    traceback.is_chained = False
                traceback.begins = None
                continue
            self.passed_over.add(at)
        return found

    def _is_of_nccl(self, at: int, before: _Failure) -> bool:
        return before.named[-1] == at - 1 and _OF_NCCL.match(self.lines[at].text) is not None

    def _ended_nothing(self, failure: _Failure) -> bool:
        """Return True if it only says that another process has ended, was survived, or is of Python's own shutdown."""
        if failure.begins:
            before = self.lines[failure.begins - 1]
            if _OF_NOBODY.match(before.text) or (before.is_loud and _RECOVERS.search(before.text)):
                return True
            if before.is_warning and self._logs_an_error_after(failure):
                return True
        named = [self.lines[at].text for at in failure.named]
        return all(_REPORTS.search(text) and not _LEFT_NO_ERROR.search(text) for text in named)

    def _logs_an_error_after(self, failure: _Failure) -> bool:
        """Return True if the program logs an error later: then what it logged as a warning before was not its end."""
        later = (at for at in self._own_lines(failure.named[-1] + 1) if self.lines[at].sender == failure.sender)
        return any(self.lines[at].is_loud and not _REPORTS.search(self.lines[at].shown) for at in later)
