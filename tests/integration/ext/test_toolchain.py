"""The toolchain from wheels: the real one is whole, and a broken one never gets its name."""

from __future__ import annotations

import hashlib
import platform
import zipfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
import tomlkit

from tests.fakes.package_index import PackageIndex
from vllm_spark import paths, proc
from vllm_spark.distro import profile
from vllm_spark.distro.ext import toolchain
from vllm_spark.errors import ArtefactError, ConfigError, IntegrityError, ToolMissing

if TYPE_CHECKING:
    from pathlib import Path

    from vllm_spark.errors import SparkError

HERE = platform.machine()
GOOD = {
    "nvidia/cu13/bin/nvcc": "#!/bin/sh\necho Cuda compilation tools, release 13.0\n",
    "nvidia/cu13/lib/libcudart.so.13": "library",
    "fake-1.dist-info/METADATA": "Name: fake\n",
}
NVCC = "nvidia/cu13/bin/nvcc"


def test_the_real_tools_run() -> None:
    tools = toolchain.ensure(profile.load("gb10-cu130"))
    for tool in (tools.nvcc, tools.ptxas, tools.cuobjdump, tools.nvdisasm):
        assert "NVIDIA" in proc.run([tool, "--version"], env=tools.env).text
    assert tools.fatbinary.stat().st_mode & 0o111
    for header in ("cuda_runtime.h", "cuda_fp4.h", "crt/host_config.h", "fatbinary_section.h", "cccl/cub/cub.cuh"):
        assert (tools.include / header).is_file(), header
    assert (tools.target_lib / "libcudart_static.a").is_file()
    assert (tools.torch_include() / "torch" / "csrc" / "stable" / "library.h").is_file()


@pytest.mark.parametrize("name", profile.names())
def test_versions_agree_between_machines(name: str) -> None:
    """A native and a cross build use the same compiler: each project has one version, and 13.0 where it exists."""
    path = paths.repo_root() / "build" / "toolchains" / f"{profile.load(name).toolchain}.toml"
    pins = toolchain._load(path)
    versions: dict[str, dict[str, str]] = {}
    for pin in pins:
        if pin.role != "torch-headers":
            versions.setdefault(pin.project, {})[pin.machine] = pin.name.split("-")[1]
    for project, by_machine in versions.items():
        assert set(by_machine) == {"x86_64", "aarch64"}, project
        assert len(set(by_machine.values())) == 1, project
        late = project.endswith(("cuobjdump", "nvdisasm"))
        assert next(iter(by_machine.values())).startswith("13.2." if late else "13.0."), project


@dataclass
class Fake:
    """A checkout whose toolchain is one small wheel of ours, and an empty cache."""

    root: Path
    downloads: Path

    def pin(self, members: dict[str, str] | bytes) -> bytes:
        """Pin a wheel with `members`, or of these bytes, and put it where a fetch looks first."""
        path = self.root / "fake-1-py3-none-any.whl"
        if isinstance(members, bytes):
            path.write_bytes(members)
        else:
            with zipfile.ZipFile(path, "w") as archive:
                for name, text in members.items():
                    info = zipfile.ZipInfo(name)
                    info.external_attr = (0o744 if "/bin/" in name else 0o644) << 16
                    archive.writestr(info, text)
        data = path.read_bytes()
        entry = {"project": "fake", "name": path.name, "sha256": hashlib.sha256(data).hexdigest(), "size": len(data)}
        files = [{**entry, "role": "tool", "machine": HERE}]
        files += [{**entry, "role": "runtime", "machine": name} for name in ("x86_64", "aarch64")]
        (self.root / "build" / "toolchains" / "fake.toml").write_text(tomlkit.dumps({"files": files}))
        path.rename(self.downloads / path.name)
        return data

    def ensure(self) -> toolchain.Toolchain:
        return toolchain.ensure(self.profile)

    @property
    def profile(self) -> profile.Profile:
        return profile.Profile(
            name="fake",
            machine="aarch64",
            compute_capability="12.1",
            cuda_arch="121a",
            toolchain="fake",
            torch_min="2.10",
            glibc="2.34",
            python="cp311",
        )

    def trees(self) -> list[str]:
        folder = self.downloads.parent / "toolchain"
        return [path.name for path in folder.glob("*") if path.is_dir()]


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    for folder in ("checkout/patches", "checkout/build/toolchains", "cache/downloads"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "checkout" / "patches" / "series").touch()
    monkeypatch.setenv("VLLM_SPARK_ROOT", str(tmp_path / "checkout"))
    monkeypatch.setenv("VLLM_SPARK_CACHE", str(tmp_path / "cache"))
    return Fake(tmp_path / "checkout", tmp_path / "cache" / "downloads")


def refused(fake: Fake, kind: type[SparkError], said: str) -> None:
    """The call fails with one line that says `said`, and leaves no tree behind."""
    with pytest.raises(kind) as caught:
        fake.ensure()
    assert said in str(caught.value)
    assert "Next: " in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not fake.trees()


def test_a_good_tree_is_composed_once(fake: Fake) -> None:
    fake.pin(GOOD)
    with ThreadPoolExecutor(4) as pool:
        roots = {made.root for made in pool.map(lambda _: fake.ensure(), range(4))}
    (root,) = roots
    assert sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()) == [
        "bin/nvcc",
        "lib/libcudart.so.13",
        "target/aarch64/lib/libcudart.so.13",
        "target/x86_64/lib/libcudart.so.13",
    ]
    (root / "marker").touch()
    fake.ensure()
    assert (root / "marker").exists()


@pytest.mark.parametrize(
    ("nvcc", "said"),
    [
        (None, "the pinned wheels hold no nvcc"),
        ("#!/bin/sh\nexit 1\n", "does not run here"),
        ("#!/bin/sh\necho GLIBC_2.99 not found >&2\nexit 127\n", "GLIBC_2.99 not found"),
        ("#!/bin/sh\necho something else\n", "does not run here: something else"),
        ("\x7fELF for another machine", "does not run here"),
    ],
)
def test_no_nvcc(fake: Fake, nvcc: str | None, said: str) -> None:
    others = {name: text for name, text in GOOD.items() if name != NVCC}
    fake.pin(others if nvcc is None else {**others, NVCC: nvcc})
    refused(fake, ToolMissing, said)


def test_a_wheel_that_leaves_its_folder(fake: Fake) -> None:
    fake.pin({**GOOD, "nvidia/cu13/../../../evil": "x"})
    refused(fake, ArtefactError, "leaves the folder")
    assert not list(fake.root.parent.rglob("evil"))


def test_a_wheel_that_is_none(fake: Fake) -> None:
    fake.pin(b"<html>sign in to the network first</html>")
    refused(fake, ArtefactError, "not a readable wheel")


def test_a_tampered_wheel(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the cache it is fetched anew; from the index it is refused."""
    data = fake.pin(GOOD)
    name = "fake-1-py3-none-any.whl"
    tampered = data.replace(b"release 13.0", b"release 13.1")
    (fake.downloads / name).write_bytes(tampered)
    with PackageIndex("fake", {name: tampered}, announced={name: hashlib.sha256(data).hexdigest()}) as index:
        monkeypatch.setenv("VLLM_SPARK_INDEX_URL", index.url)
        refused(fake, IntegrityError, "the pin says")
        assert not (fake.downloads / name).exists()
        index.files[name] = data
        assert fake.ensure().nvcc.is_file()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "missing"),
        ("files = 3", "Expected `array`"),
        ('[[files]]\nrole = "tool"\n', "missing required field"),
        ("files = []", f"pins no wheels for {HERE}"),
    ],
)
def test_a_malformed_toolchain_file(fake: Fake, text: str | None, said: str) -> None:
    if text is not None:
        (fake.root / "build" / "toolchains" / "fake.toml").write_text(text)
    refused(fake, ConfigError, said)
