"""Upstream's own wheel for aarch64: what is in it, and what the patched one keeps."""

import hashlib
import json
import re
import shutil
import sys
import zipfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from vllm_spark import proc
from vllm_spark.distro.elf.fatbin import Entry
from vllm_spark.distro.elf.payload import payload
from vllm_spark.distro.elf.shared import read_shared_object
from vllm_spark.distro.elf.source import FileSource
from vllm_spark.distro.elf.target import Capability, Form
from vllm_spark.distro.ext.toolchain import Toolchain
from vllm_spark.distro.upstream import fetch, pins
from vllm_spark.distro.wheel.audit import Violation, check
from vllm_spark.distro.wheel.expected import expected_for, read_expectations
from vllm_spark.distro.wheel.facts import WheelFacts, read_facts
from vllm_spark.distro.wheel.repack import Repacked, repack
from vllm_spark.distro.wheel.rules import Case
from vllm_spark.distro.wheel.sbom import PatchEntry, make_sbom

pytestmark = pytest.mark.slow
DATA = Path(__file__).resolve().parents[2] / "data" / "wheel"
GB10 = Capability(12, 1)
TAG = "manylinux_2_28_aarch64"
PATCH = PatchEntry("model/x", "ab" * 32, "fix", "python", True)
Extract = Callable[[Path, str], dict[str, bytes]]


@pytest.fixture(scope="module")
def official() -> Path:
    upstream = pins.load()
    return fetch.fetch(upstream.project, upstream.file("wheel", "aarch64"))


@pytest.fixture(scope="module")
def repacked(official: Path, tmp_path_factory: pytest.TempPathFactory) -> Repacked:
    upstream = pins.load()
    sbom = make_sbom(
        "vllm",
        upstream.vllm_version,
        upstream_file=official.name,
        upstream_version=upstream.version,
        upstream_sha256=upstream.file("wheel", "aarch64").sha256,
        patches=(PATCH,),
    )
    out = tmp_path_factory.mktemp("repacked")
    return repack(official, out, version=upstream.vllm_version, platform_tag=TAG, replaced={}, sbom=sbom, keep_for=GB10)


@pytest.fixture(scope="module")
def stock(official: Path) -> WheelFacts:
    return read_facts(official, GB10)


@pytest.fixture(scope="module")
def patched(repacked: Repacked) -> WheelFacts:
    return read_facts(repacked.path, GB10)


def violations(facts: WheelFacts, original: WheelFacts | None = None) -> list[Violation]:
    expected = expected_for(facts.name, read_expectations())
    return list(check(Case(facts, expected, frozenset({PATCH.name}), original)))


def test_every_rule_holds_and_no_kernel_is_lost(stock: WheelFacts, patched: WheelFacts) -> None:
    assert violations(patched, stock) == []


def test_size(official: Path, repacked: Repacked) -> None:
    assert repacked.size <= 0.55 * official.stat().st_size


def test_the_official_wheel_breaks_the_rules_that_it_breaks(stock: WheelFacts) -> None:
    assert {one.rule for one in violations(stock)} == {"W001", "W003", "W006", "W007"}
    images = {one.name.rpartition("/")[2].split(".")[0]: one.report.images for one in stock.elf}
    assert (images["_C_stable_libtorch"]["sm_120f"], images["_C_stable_libtorch"]["sm_120"]) == (35, 50)
    assert (images["_moe_C_stable_libtorch"]["sm_120f"], images["_moe_C_stable_libtorch"]["sm_120"]) == (19, 8)
    assert images["_qutlass_C"] == {"sm_100f": 6}
    assert images["_vllm_fa2_C"] == {"compute_80": 76, "sm_80": 76}
    assert images["_vllm_fa3_C"] == {"sm_90a": 192}


def test_other_members_keep_their_bytes(official: Path, repacked: Repacked) -> None:
    written = {"vllm/_version.py", *(one.name for one in repacked.blanked)}
    with zipfile.ZipFile(official) as old, zipfile.ZipFile(repacked.path) as new:
        sums = {info.filename: (info.CRC, info.file_size, info.compress_size) for info in new.infolist()}
        kept = [one for one in old.infolist() if one.filename not in written and ".dist-info/" not in one.filename]
        assert len(kept) > 5700
        assert all(sums[one.filename] == (one.CRC, one.file_size, one.compress_size) for one in kept)


def unpacked(wheel: Path, member: str, folder: Path) -> Path:
    with zipfile.ZipFile(wheel) as archive:
        return Path(archive.extract(member, folder))


@pytest.mark.parametrize("member", ["vllm/_flashkda_C.abi3.so", "vllm/_moe_C_stable_libtorch.abi3.so"])
def test_cuobjdump_extracts_what_we_kept(repacked: Repacked, tmp_path: Path, extract: Extract, member: str) -> None:
    path = unpacked(repacked.path, member, tmp_path)
    with FileSource(path) as source:
        entries = [entry for one in read_shared_object(source).containers for entry in one.entries]
        ours = Counter(hashlib.sha256(payload(source, one)).hexdigest() for one in entries if one.form is Form.CUBIN)
    theirs = Counter(hashlib.sha256(one).hexdigest() for one in extract(path, "elf").values())
    assert theirs == ours
    assert len(entries) > 0


@pytest.mark.parametrize("which", ["stock", "patched"])
def test_cuobjdump_lists_what_we_list(
    request: pytest.FixtureRequest, tmp_path: Path, tools: Toolchain, which: str
) -> None:
    facts: WheelFacts = request.getfixturevalue(which)
    for one in facts.elf:
        if not one.report.containers:
            continue
        path = unpacked(facts.path, one.name, tmp_path)
        with FileSource(path) as source:
            entries = [entry for each in read_shared_object(source).containers for entry in each.entries]
        for form, option in ((Form.CUBIN, "--list-elf"), (Form.PTX, "--list-ptx")):
            text = proc.run([tools.cuobjdump, option, path], env=tools.env).text
            names = Counter(re.findall(r"\.(sm_\w+)\.(?:cubin|ptx)", text))
            assert names == Counter(their_name(entry) for entry in entries if entry.form is form)
        path.unlink()


def their_name(entry: Entry) -> str:
    """How cuobjdump 13.2 calls an image: `f` is kept for PTX and dropped for cubins."""
    return entry.label.removesuffix("f") if entry.form is Form.CUBIN else entry.label.replace("compute_", "sm_")


def test_torch_abi_audit_agrees(official: Path, stock: WheelFacts, tmp_path: Path) -> None:
    """Our small rule for the stable ABI against the tool that knows every symbol, with one file that breaks it."""
    ours = {"unstable.so": "unstable"}
    shutil.copy(DATA / "unstable.so", tmp_path)
    for one in stock.elf:
        if one.name.endswith(".so") and one.report.size < 100 << 20:
            unpacked(official, one.name, tmp_path)
            ours[one.name] = one.report.abi.torch
    done = proc.run([Path(sys.executable).with_name("torch-abi-audit"), "--json", *(tmp_path / name for name in ours)])
    theirs = {
        str(Path(extension["path"]).relative_to(tmp_path)): verdict(extension["torch"])
        for package in json.loads(done.stdout)["packages"]
        for extension in (*package["extensions"], *package["bundled_libs"])
    }
    assert theirs == ours


def verdict(torch: dict[str, bool]) -> str:
    return ("stable" if torch["stable"] else "unstable") if torch["uses_torch"] else "none"
