"""A thread that watches the host's memory ten times a second and ends vLLM before the host starves.

A GB10 that runs out of memory does not kill the culprit: it freezes. 30 GB went in 17 seconds on one, so a sample
every 100 ms sees about 180 MB less each time. At the soft limit caches are released; at the hard limit, or when all
tasks stall for memory near it, the process says what happened and ends, which gives the memory back at once.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from vllm_spark.errors import ResourceError
from vllm_spark.runtime.kv import consumers
from vllm_spark.runtime.kv.memory import GIB, MIB, gib
from vllm_spark.runtime.kv.sensors import Sample, Sensors

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Guard", "Judge", "Limits", "Verdict", "message", "under_pressure"]

PERIOD = 0.1
_STALL_WINDOW = 10  # samples: one second
_STALL_SHARE = 0.5  # of the window in which every task waited for memory
_SOFT_PERIOD = 5.0  # seconds between two releases: each one makes the next steps allocate again

Verdict = Literal["fine", "soft", "hard"]

_pressure = threading.Event()


def under_pressure() -> bool:
    """Is memory short right now? Who reads ahead asks this before it takes another buffer."""
    return _pressure.is_set()


@dataclass(frozen=True)
class Limits:
    """Headroom in bytes at which something is done."""

    soft: int
    hard: int

    @classmethod
    def of(cls, total: int, reserve: int | None = None) -> Limits:
        """For `total` bytes of memory: 3 and 1.5 GiB on a GB10, less on small machines and containers.

        Half the `reserve` is the most: with the KV cache at its largest, the reserve is what is left.
        """
        soft = min(3 * GIB, max(total // 40, min(512 * MIB, total // 4)))
        if reserve is not None:
            soft = min(soft, reserve // 2)
        return cls(soft, soft // 2)


@dataclass
class Judge:
    """Turns samples into verdicts: a pure state machine, so that recorded traces can be replayed."""

    limits: Limits
    _stalls: list[tuple[float, float]] = field(default_factory=list)

    def __call__(self, sample: Sample) -> Verdict:
        """The verdict after `sample`; samples come in the order of their time."""
        if sample.headroom <= self.limits.hard:
            return "hard"
        self._stalls.append((sample.time, sample.stall))
        del self._stalls[: -(_STALL_WINDOW + 1)]
        if sample.headroom > self.limits.soft:
            return "fine"
        (begin, before), (end, after) = self._stalls[0], self._stalls[-1]
        full = len(self._stalls) > _STALL_WINDOW and after - before > _STALL_SHARE * (end - begin)
        return "hard" if full else "soft"


def message(phase: str, sample: Sample, limits: Limits, top: list[consumers.Consumer]) -> str:
    """What the user reads when the guard ends vLLM."""
    biggest = ", ".join(f"{who.name} (pid {who.pid}) {gib(who.size)}" for who in top) or "unknown"
    what = (
        f"memory ran out while in phase '{phase}': {gib(sample.headroom)} left by {sample.limit} "
        f"(stopped at {gib(limits.hard)}, all tasks stalled {sample.stall:.1f} s so far); largest: {biggest}"
    )
    hint = "stop one of these, use a smaller model or --max-model-len, or raise VLLM_SPARK_HOST_RESERVE"
    return str(ResourceError(what, where="vllm-spark guard", hint=hint))


def stop(text: str) -> None:
    """Say `text` and end this process with `ResourceError`'s code, its compilers and other children first.

    `os._exit` on purpose: unwinding would need memory and time that are not there, and the kernel gives back
    everything at exit. vLLM's API server sees its engine end and shuts down.
    """
    os.write(2, f"error: {text}\n".encode())
    for pid in consumers.descendants(os.getpid()):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    os._exit(ResourceError.exit_code)


@dataclass
class Guard:
    """The sampler thread.

    Attributes:
        sensors: open files of the kernel, read without opening anything again.
        limits: when to act.
        phase: what the process is doing, for the message; the owner sets it.
        release: called at the soft limit, from the guard's thread; must not disturb running work.
        device_bytes: memory that this process holds on an integrated GPU: no kernel file shows it.
        end: what ends the process.
    """

    sensors: Sensors
    limits: Limits
    phase: str = "start"
    release: Callable[[], None] | None = None
    device_bytes: Callable[[], int] | None = None
    end: Callable[[str], None] = stop
    _thread: threading.Thread | None = None
    _stop: threading.Event = field(default_factory=threading.Event)

    def start(self) -> None:
        """Begin to sample; the thread dies with the process."""
        self._thread = threading.Thread(target=self._run, name="vllm-spark-guard", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop sampling and close the files."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        self.sensors.close()
        _pressure.clear()

    def _run(self) -> None:
        judge = Judge(self.limits)
        released = float("-inf")
        while not self._stop.wait(PERIOD):
            sample = self.sensors.sample()
            judge.limits = self.limits  # the owner may have learnt its reserve meanwhile
            verdict = judge(sample)
            if verdict == "hard":
                self.end(message(self.phase, sample, self.limits, self._top()))
                return
            if verdict == "fine":
                _pressure.clear()
                continue
            _pressure.set()
            if self.release is not None and sample.time - released >= _SOFT_PERIOD:
                released = sample.time
                self.release()

    def _top(self) -> list[consumers.Consumer]:
        own = self.device_bytes() if self.device_bytes is not None else 0
        return consumers.largest(extra={os.getpid(): own})


def watch(
    total: int,
    *,
    limits: Limits | None = None,
    release: Callable[[], None] | None = None,
    device_bytes: Callable[[], int] | None = None,
    proc: Path = Path("/proc"),
) -> Guard:
    """A running guard for a process that may use `total` bytes.

    Raises:
        ResourceError: the kernel's files cannot be read.
    """
    guard = Guard(Sensors.open(proc), limits or Limits.of(total), release=release, device_bytes=device_bytes)
    guard.start()
    return guard
