"""One wheel that keeps a rule and one that breaks it, for each rule."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from vllm_spark.distro.elf.target import Capability, Support
from vllm_spark.distro.wheel.audit import Audit, audit
from vllm_spark.distro.wheel.expected import ExpectedExtension, ExpectedWheel, expected_for, read_expectations
from vllm_spark.distro.wheel.names import WheelName
from vllm_spark.distro.wheel.repack import repack
from vllm_spark.distro.wheel.rules import RULES
from vllm_spark.distro.wheel.sbom import PatchEntry, make_sbom
from vllm_spark.errors import ConfigError

GB10 = Capability(12, 1)
EXTENSION = "demo/many.abi3.so"
UNSTABLE = "demo/unstable.abi3.so"
DATA = Path(__file__).resolve().parents[2] / "data" / "wheel"
INFO = "demo-1.2.0.dist-info"
PATCH = PatchEntry("model/x", "ab" * 32, "fix", "python", True)
Build = Callable[..., Path]


@dataclass
class Bench:
    """A wheel that keeps every rule, and ways to spoil it."""

    source: Path
    out: Path
    sbom: bytes | None
    tag: str = "manylinux_2_28_x86_64"
    expected: dict[str, object] = field(default_factory=dict)
    keep_for: Capability | None = GB10

    def wheel(self) -> Path:
        return repack(
            self.source,
            self.out,
            version="1.2.0+spark.1",
            platform_tag=self.tag,
            replaced={},
            sbom=self.sbom,
            keep_for=self.keep_for,
        ).path

    def expectation(self) -> ExpectedWheel:
        extensions = {EXTENSION: ExpectedExtension(Support.NATIVE, native=3, jit=0)}
        fields = {
            "project": "demo",
            "machine": "x86_64",
            "device": "12.1",
            "max_size": 60_000,
            "sbom": True,
            "extensions": extensions,
            **self.expected,
        }
        return ExpectedWheel(**fields)  # type: ignore[arg-type]  # the tests vary them

    def audit(self, path: Path | None = None, **options: object) -> list[str]:
        arguments = {"patches": [PATCH.name], **options}
        done: Audit = audit(path or self.wheel(), [self.expectation()], **arguments)  # type: ignore[arg-type]
        return [str(one) for one in done.violations]


def sbom(**changes: object) -> bytes:
    fields = {
        "upstream_file": "demo-1.2.0.whl",
        "upstream_version": "1.2.0",
        "upstream_sha256": "e9" * 32,
        "patches": (PATCH,),
        **changes,
    }
    return make_sbom("demo", "1.2.0+spark.1", **fields)  # type: ignore[arg-type]  # the tests vary them


@pytest.fixture
def bench(build_wheel: Build, tmp_path: Path) -> Bench:
    return Bench(build_wheel(), tmp_path / "out", sbom())


def test_rules_are_documented_and_numbered() -> None:
    assert [rule.id for rule in RULES] == [f"W{number:03}" for number in range(1, 8)]
    assert all(rule.title and type(rule).__doc__ for rule in RULES)


def test_all_rules_hold(bench: Bench) -> None:
    assert bench.audit(original=bench.source) == []


def test_w001_tag(bench: Bench) -> None:
    """As upstream's own wheel does: WHEEL names another platform than the file."""
    found = bench.audit(bench.source)
    assert "W001 WHEEL says cp38-abi3-linux_x86_64, the file name cp38-abi3-manylinux_2_28_x86_64" in found


def test_w001_name_and_version(bench: Bench, build_wheel: Build, files: dict[str, bytes]) -> None:
    metadata = (
        files[f"{INFO}/METADATA"].replace(b"Name: demo", b"Name: other").replace(b"Version: 1.2.0\nR", b"Version: 3\nR")
    )
    found = bench.audit(build_wheel({f"{INFO}/METADATA": metadata}))
    assert "W001 METADATA names other, the file name demo" in found
    assert "W001 METADATA has version 3, the file name 1.2.0" in found


def test_w002(bench: Bench, build_wheel: Build, files: dict[str, bytes]) -> None:
    path = build_wheel(record=b"demo/core.py,sha256=x,600\n")
    assert any(line.startswith("W002 not listed in RECORD") for line in bench.audit(path))


def test_w003_dead_code(bench: Bench) -> None:
    bench.keep_for = None
    assert bench.audit() == [f"W003 {EXTENSION}: carries code that 12.1 cannot use: 1 sm_100f, 1 sm_80, 2 sm_90a"]


def test_w003_other_device(bench: Bench) -> None:
    bench.keep_for = Capability(9, 0)
    found = bench.audit(original=bench.source)
    assert f"W003 {EXTENSION}: JIT only, not native" in found
    assert f"W003 {EXTENSION}: 0 kernels native, not 3" in found
    assert f"W003 {EXTENSION}: lost add_one (fat binary 0): native, now JIT only" in found


def test_w003_lists(bench: Bench) -> None:
    bench.expected = {"extensions": {"demo/gone.so": ExpectedExtension(Support.NATIVE)}}
    assert bench.audit() == [
        "W003 demo/gone.so: expected by build/audit.toml, but not there or without device code (stale entry?)",
        f"W003 {EXTENSION}: has device code, but build/audit.toml does not list it",
    ]


@pytest.fixture
def spoilt(bench: Bench, build_wheel: Build) -> Bench:
    """A wheel with a second extension, which needs what it must not."""
    bench.source = build_wheel({UNSTABLE: (DATA / "unstable.so").read_bytes()})
    return bench


def test_w004_and_w005(spoilt: Bench) -> None:
    assert spoilt.audit() == [
        f"W004 {UNSTABLE}: 2 symbols outside the stable ABI, such as _ZN3c105ErrorC1Ev",
        f"W005 {UNSTABLE}: needs glibc 2.34, the tag says 2.28",
    ]


def test_w004_exception_and_w005_newer_tag(spoilt: Bench) -> None:
    spoilt.tag = "manylinux_2_34_x86_64"
    spoilt.expected = {"unstable": frozenset({UNSTABLE})}
    assert spoilt.audit() == []


def test_w004_stale_exception(bench: Bench) -> None:
    bench.expected = {"unstable": frozenset({EXTENSION})}
    assert bench.audit() == [f"W004 {EXTENSION}: listed as unstable in build/audit.toml, but it is not (stale entry)"]


def test_w005_tag_that_promises_nothing(bench: Bench) -> None:
    bench.tag = "linux_x86_64"
    assert bench.audit() == ["W005 platform tag linux_x86_64 promises no glibc"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "has no sboms/vllm-spark.cdx.json"),
        (b"{", "SBOM is not JSON"),
        (b"{}", "SBOM is not valid CycloneDX 1.6"),
        (sbom(upstream_sha256=""), "SBOM names no upstream wheel with its hash"),
        (sbom(patches=()), "patch model/x is not in the SBOM"),
        (sbom(patches=(PATCH, replace(PATCH, name="b"))), "patch b is in the SBOM but not in the series"),
        (sbom().replace(b'"version": "1.2.0+spark.1"', b'"version": "7"'), "SBOM is about demo 7"),
    ],
)
def test_w006(bench: Bench, content: bytes | None, message: str) -> None:
    bench.sbom = content
    (line,) = bench.audit()
    assert line.startswith(f"W006 {message}")


def test_w006_may_be_left_out(bench: Bench) -> None:
    bench.sbom = None
    bench.expected = {"sbom": False}
    assert bench.audit() == []


def test_w007(bench: Bench) -> None:
    bench.expected = {"max_size": 1000}
    (line,) = bench.audit()
    assert line.startswith("W007 ")
    assert f"over the budget of 1000; largest: {EXTENSION}" in line


def test_expectations_of_the_project() -> None:
    wheels = read_expectations()
    name = WheelName.parse(Path("vllm-0.33.0+spark.1-cp38-abi3-manylinux_2_28_aarch64.whl"))
    assert expected_for(name, wheels).capability == GB10


@pytest.mark.parametrize("number", [0, 2])
def test_wheel_without_one_expectation(bench: Bench, number: int) -> None:
    with pytest.raises(ConfigError, match=f"{number} entries for demo on x86_64"):
        audit(bench.source, [bench.expectation()] * number)


NEGATIVE = "[[wheels]]\nproject = 'x'\nmachine = 'y'\ndevice = '1.0'\nmax_size = -1"


@pytest.mark.parametrize("text", ["", "wheels = 3", "[[wheels]]\nproject = 'x'", NEGATIVE, "=", "\xff"])
def test_malformed_expectations(tmp_path: Path, text: str) -> None:
    path = tmp_path / "audit.toml"
    path.write_text(text, "latin-1")
    with pytest.raises(ConfigError, match="malformed"):
        read_expectations(path)


def test_missing_expectations(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        read_expectations(tmp_path / "audit.toml")
