"""Guard of build/keep-cc121: upstream's whole CMakeLists.txt in script mode, for each way to ask for 12.1."""

from __future__ import annotations

import re
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from vllm_spark import proc

if TYPE_CHECKING:
    from collections.abc import Callable

DATA = Path(__file__).parent.parent / "data" / "guards"
CUDA = ("13.0", "13.4")
# Requests that name 12.1; the last three stand beside what would push it out of upstream's lists.
NAMED = ("12.1", "12.1a", "12.1f", "12.0;12.1", "12.0f;12.1a", "8.0;12.1f", "12.0a;12.1", "12.0a;12.1a", "12.0a;12.1f")
OTHER = ("12.0", "12.0f", "9.0a", "10.0;12.0")
# Sources with instructions that only the a and f targets have (cvt.e2m1x2, block-scaled MMA).
FP4 = re.compile(r"/fp4/(?!nvfp4_quant_entry|nvfp4_scaled_mm_entry)|nvfp4_kv_cache")


def verdict(target: str) -> str:
    """What a device of compute capability 12.1 does with an image: `native`, `jit`, or `` when it cannot load it."""
    if target.endswith("+PTX"):
        return "jit"  # every list of ours ends at 12.1; older PTX is translated when it is loaded
    return "native" if target in {"12.0", "12.1", "12.0f", "12.1f", "12.1a"} else ""


@dataclass(frozen=True)
class Configured:
    """Which targets each source is built for, and what the configuration said."""

    targets: dict[str, frozenset[str]]
    log: str

    @property
    def sm12x(self) -> frozenset[str]:
        """The sources that are built for SM12x at all."""
        return frozenset(name for name, found in self.targets.items() if any(t.startswith("12.") for t in found))


def configure(tree: Path, scratch: Path, request: str, cuda: str = "13.0") -> Configured:
    """Run the tree's CMakeLists.txt for one `TORCH_CUDA_ARCH_LIST` and one toolkit."""
    (scratch / "cutlass").mkdir(exist_ok=True)
    (scratch / "cutlass" / "cutlass.h").touch()  # QuTLASS looks whether it exists
    cmake = Path(sysconfig.get_path("scripts")) / "cmake"
    facts = [f"-DREQUEST={request}", f"-DCUDA={cuda}", f"-DCUTLASS_INCLUDE_DIR={scratch}"]
    done = proc.run([cmake, *facts, "-P", DATA / "arch_groups.cmake"], cwd=tree, check=False)
    assert done.status == 0, done.output[-2000:]
    assert "READ TO THE END" in done.output
    targets: dict[str, set[str]] = {}
    for line in done.output.splitlines():
        if line.startswith("-- GROUP|"):
            _, _, wanted, sources = line.split("|")
            for source in sources.split(";"):
                targets.setdefault(source, set()).update(filter(None, wanted.split(";")))
    return Configured({name: frozenset(found) for name, found in targets.items()}, done.output)


@pytest.mark.parametrize("cuda", CUDA)
@pytest.mark.parametrize("request_", NAMED)
def test_every_group_loads_on_121(
    tree: Path, tmp_path: Path, record_property: Callable[[str, object], None], request_: str, cuda: str
) -> None:
    made = configure(tree, tmp_path, request_, cuda)
    expected = configure(tree, tmp_path, "12.0f", cuda).sm12x
    lost = {name for name in expected if "native" not in map(verdict, made.targets.get(name, frozenset()))}
    assert len(expected) > 50
    assert not lost
    # Not wrong, but worth knowing: images that only cost size beside the native one.
    spare = {name: found for name, found in made.targets.items() if name in expected and "jit" in map(verdict, found)}
    record_property("sources with PTX beside native SM12x code", len(spare))


@pytest.mark.parametrize("cuda", CUDA)
@pytest.mark.parametrize("request_", NAMED)
def test_no_bare_target_reaches_fp4(tree: Path, tmp_path: Path, request_: str, cuda: str) -> None:
    made = configure(tree, tmp_path, request_, cuda)
    found = {name: targets for name, targets in made.targets.items() if FP4.search(name)}
    assert len(found) >= 6
    assert not {target for targets in found.values() for target in targets if not target.endswith(("a", "f"))}


@pytest.mark.parametrize("request_", NAMED)
def test_log_says_what_was_changed(tree: Path, tmp_path: Path, request_: str) -> None:
    log = configure(tree, tmp_path, request_).log
    said = re.search(r"^-- CUDA target architectures changed: (\S+) -> (\S+) ", log, re.MULTILINE)
    assert said
    assert set(said[1].split(";")) == set(request_.split(";"))
    assert not re.search(r"12\.1", said[2])


@pytest.mark.parametrize(("request_", "cuda"), [*((each, "13.0") for each in OTHER), ("12.1a", "12.9")])
def test_other_requests_are_left_alone(tree: Path, tmp_path: Path, request_: str, cuda: str) -> None:
    assert "architectures changed" not in configure(tree, tmp_path, request_, cuda).log


def test_naive_list_entry_is_caught(tree: Path, tmp_path: Path) -> None:
    """12.1 in the supported list, and nothing else, would send bare 12.1 to FP4: this guard must see that."""
    copy = tmp_path / "tree"
    copy.mkdir()
    for name in ("cmake", "csrc"):
        (copy / name).symlink_to(tree / name)
    text = (tree / "CMakeLists.txt").read_text()
    text = re.sub(r'(set\(CUDA_SUPPORTED_ARCHS "[^"]*;12\.0)"', r'\1;12.1"', text)
    text = text.replace('CUDA_ARCHS MATCHES "12\\\\.1"', "FALSE")  # without ours
    (copy / "CMakeLists.txt").write_text(text)
    made = configure(copy, tmp_path, "12.1")
    assert {made.targets[name] for name in made.targets if FP4.search(name)} == {frozenset({"12.1"})}


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        *((target, "native") for target in ("12.0", "12.1", "12.0f", "12.1f", "12.1a")),
        *((target, "jit") for target in ("8.0+PTX", "9.0+PTX", "8.9+PTX")),
        *((target, "") for target in ("12.0a", "10.0f", "10.0", "9.0a", "8.0", "8.9", "11.0f")),
    ],
)
def test_verdict(target: str, expected: str) -> None:
    assert verdict(target) == expected
