"""Phase one against an imagined runner and device: what is read when, and that everything is dropped again."""

import os
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_spark.errors import ConfigError, ResourceError
from vllm_spark.runtime.kv import phases, resolve, worker
from vllm_spark.runtime.kv.probe import CpuProbe, Reading, parse_status

TOTAL = 1000


class Device:
    """Memory that the imagined runner takes and gives back; stands in for `CudaProbe`."""

    def __init__(self) -> None:
        self.own = 100
        self.neighbour = 0

    def release(self) -> None:
        pass

    def reserved(self) -> int:
        return self.own

    def read(self) -> Reading:
        return Reading(TOTAL, TOTAL - self.own - self.neighbour, self.own, "device")


class Runner:
    """The second model runner, as far as capture goes: a KV cache of 20, graphs of 7, both gone in the end."""

    def __init__(self, device: Device, *, captures: bool = True, leak: int = 0) -> None:
        self.device, self.captures, self.leak = device, captures, leak
        self.cudagraph_manager: Any = SimpleNamespace(_max_full_descs_to_capture=2)

    def capture_model(self, *, profile_only: bool = False) -> int:
        assert profile_only
        assert self.cudagraph_manager._max_full_descs_to_capture is None, "a sample of the graphs is no measurement"
        self.device.own += 7
        return 7

    def profile_cudagraph_memory(self) -> int:
        if self.captures:
            self.device.own += 20
            self.capture_model(profile_only=True)
            self.device.own -= 27 - self.leak
        return 99  # upstream's extrapolation, which nobody asked for


def fake(monkeypatch: pytest.MonkeyPatch, name: str, **attributes: object) -> None:
    module = ModuleType(name)
    vars(module).update(attributes)
    monkeypatch.setitem(sys.modules, name, module)


@pytest.fixture(autouse=True)
def _vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    fake(monkeypatch, "vllm", __path__=[])
    fake(monkeypatch, "vllm.config", CUDAGraphMode=SimpleNamespace(NONE=0))


def make(runner: object, *, second: bool = True, eager: bool = False, mode: int = 2, encoder: bool = False) -> Any:
    compilation = SimpleNamespace(cudagraph_mode=mode, cudagraph_mm_encoder=encoder)
    return SimpleNamespace(
        model_runner=runner,
        use_v2_model_runner=second,
        model_config=SimpleNamespace(enforce_eager=eager),
        vllm_config=SimpleNamespace(compilation_config=compilation),
    )


def captured(worker_: Any, device: Device) -> phases.Graphs:
    return phases.captured(worker_, device)  # type: ignore[arg-type]


def test_memory_is_read_while_graphs_and_kv_live() -> None:
    device = Device()
    runner = Runner(device)
    found = captured(make(runner), device)
    assert found == phases.Graphs(Reading(TOTAL, TOTAL - 127, 127, "device"), graphs=7, phase_one_kv=20)
    assert "capture_model" not in vars(runner), "the real capture must be upstream's own again"
    assert device.own == 100


def test_what_is_not_given_back_is_not_counted_as_given_back() -> None:
    device = Device()
    assert captured(make(Runner(device, leak=5)), device).phase_one_kv == 15


def test_a_failing_capture_leaves_the_runner_as_it_was() -> None:
    device = Device()
    runner = Runner(device)
    runner.cudagraph_manager = None
    with pytest.raises(AttributeError):
        captured(make(runner), device)
    assert "capture_model" not in vars(runner)


@pytest.mark.parametrize(
    ("eager", "mode", "encoder", "second"), [(True, 2, True, True), (False, 0, False, True), (False, 0, True, False)]
)
def test_no_graphs_no_capture(*, eager: bool, mode: int, encoder: bool, second: bool) -> None:
    device = Device()
    found = captured(make(object(), second=second, eager=eager, mode=mode, encoder=encoder), device)
    assert found == phases.Graphs(device.read(), 0, 0)


def test_encoder_graphs_alone_are_captured() -> None:
    device = Device()
    assert captured(make(Runner(device), mode=0, encoder=True), device).graphs == 7


def test_nothing_to_capture_after_all() -> None:
    device = Device()
    assert captured(make(Runner(device, captures=False)), device) == phases.Graphs(device.read(), 0, 0)


@pytest.mark.parametrize(("estimate", "graphs"), [(30, 30), (-50, 0)])
def test_the_first_runners_estimate_is_taken_off(estimate: int, graphs: int) -> None:
    device = Device()
    found = captured(make(SimpleNamespace(profile_cudagraph_memory=lambda: estimate), second=False), device)
    assert found == phases.Graphs(Reading(TOTAL, TOTAL - 100 - graphs, 100 + graphs, "device"), graphs, 0)


@given(st.integers(1, 8), st.integers(1, 4096), st.integers(1, 2048), st.integers(0, 1024))
def test_blocks_hold_the_longest_step_and_every_sequence(groups: int, block: int, seqs: int, size: int) -> None:
    blocks = phases.warm_up_blocks(groups, block, seqs, size)
    assert (blocks - 1) * block >= 2049 * groups or blocks - 1 >= groups * (2049 // block + 2)
    assert blocks >= min(seqs, size)
    assert blocks > groups * 2 * min(seqs, 64)


@given(st.integers(0, 1 << 20))
def test_ladder_never_exceeds_the_longest_step(longest: int) -> None:
    sizes = phases.token_ladder(longest)
    assert sizes == sorted(sizes)
    assert all(16 <= size <= longest for size in sizes)


@pytest.mark.parametrize(
    ("enabled", "unified", "refused"), [(True, True, True), (True, False, False), (False, True, False)]
)
def test_sleep_mode_is_refused_where_it_cannot_help(*, enabled: bool, unified: bool, refused: bool) -> None:
    if refused:
        with pytest.raises(ConfigError, match="--enable-sleep-mode"):
            worker.refuse_sleep(enabled=enabled, unified=unified)
    else:
        worker.refuse_sleep(enabled=enabled, unified=unified)


def test_worker_classes_are_made_from_vllms(monkeypatch: pytest.MonkeyPatch) -> None:
    class Worker:
        pass

    fake(monkeypatch, "vllm.v1.worker.gpu_worker", Worker=Worker)
    for name in ("vllm.v1", "vllm.v1.worker"):
        fake(monkeypatch, name, __path__=[])
    monkeypatch.delitem(vars(worker), "AutoWorker", raising=False)
    made = worker.AutoWorker
    assert issubclass(made, Worker)
    assert worker.AutoWorker is made
    monkeypatch.delitem(vars(worker), "AutoWorker")
    with pytest.raises(AttributeError, match="NoSuchWorker"):
        getattr(worker, "NoSuchWorker")  # noqa: B009 - mypy would take the attribute


def args(**given: object) -> Any:
    return SimpleNamespace(worker_cls="auto", gpu_memory_utilization="auto", **given)


@pytest.mark.parametrize(("cpu", "cuda", "name"), [(True, False, "AutoCPUWorker"), (False, True, "AutoWorker")])
def test_auto_names_the_platforms_worker(monkeypatch: pytest.MonkeyPatch, *, cpu: bool, cuda: bool, name: str) -> None:
    platform = SimpleNamespace(is_cpu=lambda: cpu, is_cuda=lambda: cuda, device_name="x")
    fake(monkeypatch, "vllm.platforms", current_platform=platform)
    fake(monkeypatch, "vllm.config", CacheConfig=SimpleNamespace(gpu_memory_utilization=0.92))
    found = args()
    resolve.resolve(found)
    assert (found.worker_cls, found.gpu_memory_utilization) == (f"vllm_spark.runtime.kv.worker.{name}", 0.92)


def test_auto_on_another_platform_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    platform = SimpleNamespace(is_cpu=lambda: False, is_cuda=lambda: False, device_name="tpu")
    fake(monkeypatch, "vllm.platforms", current_platform=platform)
    with pytest.raises(ConfigError, match="not tpu"):
        resolve.resolve(args())


def test_auto_is_offered_only_to_a_vllm_that_knows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    fake(monkeypatch, "vllm.config", __path__=[])
    fake(monkeypatch, "vllm.config.cache")
    resolve.register_auto()
    assert not hasattr(sys.modules["vllm.config.cache"], "auto_memory_resolver")
    fake(monkeypatch, "vllm.config.cache", auto_memory_resolver=None)
    resolve.register_auto()
    assert sys.modules["vllm.config.cache"].auto_memory_resolver is resolve.resolve


def test_compiler_jobs_are_limited_unless_the_user_did(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAX_JOBS", "99")
    resolve.limit_jit_jobs()
    assert os.environ["MAX_JOBS"] == "99"
    monkeypatch.delenv("MAX_JOBS")
    resolve.limit_jit_jobs()
    assert int(os.environ["MAX_JOBS"]) >= 1


def test_unreadable_memory_leaves_compiler_jobs_alone_and_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def unreadable() -> None:
        raise ResourceError("no MemAvailable", where="/proc/meminfo")

    monkeypatch.delenv("MAX_JOBS", raising=False)
    monkeypatch.setattr(resolve, "read_host", unreadable)
    resolve.limit_jit_jobs()
    assert "MAX_JOBS" not in os.environ
    assert "compiler jobs are not limited: /proc/meminfo: no MemAvailable" in capsys.readouterr().err


def test_status() -> None:
    assert parse_status("Name:\tx\nVmHWM:\t     12 kB\nVmRSS:\t      8 kB\n", "VmHWM") == 12 * 1024


def test_a_step_in_host_memory_is_seen_at_its_peak() -> None:
    probe = CpuProbe()

    def step() -> None:
        block = bytearray(b"x") * (256 << 20)
        del block

    assert (200 << 20) < probe.peak(step) < (400 << 20)
    assert probe.peak(lambda: None) < (64 << 20)
