"""Known histories of vLLM, replayed on its own releases."""

import difflib
import tomllib
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.fakes.upstream_repo import Upstream, message
from vllm_spark import paths
from vllm_spark.distro.rebase.known import known
from vllm_spark.distro.rebase.ladder import Ladder
from vllm_spark.distro.rebase.merge import Bench
from vllm_spark.distro.rebase.origin import Release
from vllm_spark.distro.rebase.verdict import Result
from vllm_spark.distro.series import export, store
from vllm_spark.distro.upstream import pins
from vllm_spark.distro.upstream.git import Repository
from vllm_spark.distro.upstream.mirror import Mirror

pytestmark = pytest.mark.slow

TABLE = Path(__file__).parents[2] / "data" / "rebase" / "verdicts.toml"
BACK = ("0.32.0", "0.31.0", "0.23.0")
ALL = ("0.20.2", "0.23.0", "0.31.0", "0.32.0", "0.33.0")


@dataclass
class Real:
    """The mirror with all releases, and a place for patches."""

    root: Path
    mirror: Mirror
    releases: dict[str, Release]

    def __post_init__(self) -> None:
        self.upstream = Upstream(self.root, mirror=self.mirror.path)

    def text(self, version: str, path: str) -> str:
        return self.mirror.repository("show", f"{self.releases[version].commit}:{path}").stdout.decode()

    def patch(self, version: str, edits: dict[str, str]) -> bytes:
        return self.upstream.patch(message("model/a"), {k: v.encode() for k, v in edits.items()}, version=version)

    def ladder(self, patches: dict[str, bytes], old: str, new: str) -> tuple[Ladder, list[Result]]:
        folder = self.root / f"series-{old}-{new}"
        for name, data in patches.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(data)
        (folder / "series").write_text("".join(f"{name}\n" for name in patches))
        bench = Bench(Repository.create(self.root / f"{old}-{new}.git", borrow=self.mirror.path).path)
        ladder = Ladder(bench, store.survey(folder), self.releases[old], self.releases[new])
        return ladder, ladder.climb()

    def one(self, data: bytes, old: str, new: str) -> Result:
        _, (result,) = self.ladder({"model/a.patch": data}, old, new)
        return result


@pytest.fixture(scope="module")
def mirror() -> tuple[Mirror, dict[str, Release]]:
    upstream, folder = pins.load(), paths.repo_root() / "patches"
    made = Mirror(upstream.project)
    releases = {}
    for version in ALL:
        pin = known(upstream, version, folder)
        assert pin is not None, f"{version} is not pinned"
        releases[version] = Release(version, made.ensure(version, pin))
    return made, releases


@pytest.fixture
def real(tmp_path: Path, mirror: tuple[Mirror, dict[str, Release]]) -> Real:
    return Real(tmp_path, *mirror)


C3X = "quantization/w8a8/cutlass/c3x"
GUARD = "csrc/cutlass_extensions/common.hpp"
USERS = (f"csrc/libtorch_stable/{C3X}/scaled_mm.cuh", f"csrc/libtorch_stable/{C3X}/scaled_mm_sm120_fp8_dispatch.cuh")


def sm120_guard(real: Real) -> bytes:
    """Let FP8 GEMM run on all of SM12x: both users take the family, and the old guard goes. Made for 0.20.2."""
    edits = {path: real.text("0.20.2", path).replace("enable_sm120_only<", "enable_sm120_family<") for path in USERS}
    text = real.text("0.20.2", GUARD)
    start = text.index("template <typename Kernel>\nstruct enable_sm120_only")
    end = text.index("// SM12x family includes")
    return real.patch("0.20.2", {**edits, GUARD: text[:start] + text[end:]})


def test_sm120_guard_applies_to_its_own_release(real: Real) -> None:
    result = real.one(sm120_guard(real), "0.20.2", "0.20.2")
    assert result.verdict == "clean"
    assert result.files == (GUARD, *USERS)


@pytest.mark.parametrize("version", ["0.23.0", "0.31.0"])
def test_sm120_guard_landed_in_part(real: Real, version: str) -> None:
    """Both users were changed; the guard itself moved, got another text, and is still there."""
    result = real.one(sm120_guard(real), "0.20.2", version)
    assert (result.verdict, result.landed) == ("conflict", USERS)
    assert [clash.file for clash in result.clashes] == ["csrc/libtorch_stable/cutlass_extensions/common.hpp"]


@pytest.mark.parametrize("version", ["0.32.0", "0.33.0"])
def test_sm120_guard_landed(real: Real, version: str) -> None:
    result = real.one(sm120_guard(real), "0.20.2", version)
    assert (result.verdict, result.commit) == ("landed", "")


def test_csrc_moved(real: Real) -> None:
    old = f"csrc/libtorch_stable/{C3X}/scaled_mm_sm120_fp8_dispatch.cuh"
    new = f"csrc/{C3X}/scaled_mm_sm120_fp8_dispatch.cuh"
    text = real.text("0.31.0", old).replace("enable_sm120_family<", "/* ours */ enable_sm120_family<")
    result = real.one(real.patch("0.31.0", {old: text}), "0.31.0", "0.32.0")
    assert (result.verdict, result.moved, result.files) == ("moved", {old: new}, (new,))


def test_gemma4_mapper_rewritten(real: Real) -> None:
    """A fix in the function that 0.31 replaced by a mapper: neither landed nor carried in silence."""
    path = "vllm/model_executor/models/gemma4.py"
    text = real.text("0.23.0", path)
    line = next(each for each in text.splitlines() if each.startswith("def _remap_gemma4_expert_weight_name"))
    fixed = text.replace(line, line + '\n    name = name.replace("_packed", ".weight_packed")')
    result = real.one(real.patch("0.23.0", {path: fixed}), "0.23.0", "0.31.0")
    assert (result.verdict, result.stuck) == ("conflict", True)
    assert "+    name = name.replace" in result.clashes[0].ours
    assert any("_gemma4_layer_weights_mapper" in row for row in result.clashes[0].upstream)


def test_constant_replaced_by_a_helper(real: Real) -> None:
    """0.31 computes num_kv_splits in a function: only a guard can tell that ours is not needed any more."""
    path = "vllm/v1/attention/backends/mla/triton_mla.py"
    text = real.text("0.20.2", path).replace("occupancy_multiplier = 2\n", "occupancy_multiplier = 4\n")
    result = real.one(real.patch("0.20.2", {path: text}), "0.20.2", "0.31.0")
    assert (result.verdict, result.stuck) == ("conflict", True)


def test_rejected_test_hunk_does_not_block_code(real: Real) -> None:
    code, test = "vllm/model_executor/models/gemma4.py", "tests/kernels/moe/test_moe.py"
    before, after = (real.text(version, test).splitlines(keepends=True) for version in ("0.31.0", "0.32.0"))
    changes = difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes()
    place = next(i for kind, i, *_ in changes if kind == "replace")
    ours = [*before[:place], "# ours\n", *before[place + 1 :]]
    edits = {test: "".join(ours), code: real.text("0.31.0", code).replace("logger = ", "# ours\nlogger = ", 1)}
    result = real.one(real.patch("0.31.0", edits), "0.31.0", "0.32.0")
    assert (result.verdict in ("clean", "offset"), result.files, result.left_out) == (True, (code,), (test,))


@pytest.mark.parametrize("version", BACK)
def test_series_back_and_forward(real: Real, version: str) -> None:
    """The verdicts are those that were checked by hand; what was carried back comes forward byte for byte."""
    table = tomllib.loads(TABLE.read_text())[version]
    series = store.load()
    patches = {patch.path: patch.format() for patch in series.patches}
    ladder, back = real.ladder(patches, "0.33.0", version)
    assert {each.patch: each.verdict for each in back if each.patch in table} == {
        name: verdict for name, verdict in table.items() if f"{name}.patch" in patches
    }
    carried = {f"{each.patch}.patch": export.render(ladder.bench, each.commit) for each in back if each.commit}
    ladder, forward = real.ladder(carried, version, "0.33.0")
    assert not [each for each in forward if each.stuck]
    again = {f"{each.patch}.patch": export.render(ladder.bench, each.commit) for each in forward}
    assert again == {path: patches[path] for path in carried}


def test_real_series_stays_on_its_release(real: Real) -> None:
    patches = {patch.path: patch.format() for patch in store.load().patches}
    ladder, results = real.ladder(patches, "0.33.0", "0.33.0")
    assert {each.verdict for each in results} == {"clean"}
    assert {f"{each.patch}.patch": export.render(ladder.bench, each.commit) for each in results} == patches
