"""NVIDIA's own tools read the same images as we do, in stock files and in blanked ones."""

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from vllm_spark import proc
from vllm_spark.distro.elf.blank import plan_blanking
from vllm_spark.distro.elf.payload import payload
from vllm_spark.distro.elf.shared import read_shared_object
from vllm_spark.distro.elf.source import EditedSource, FileSource, chunks
from vllm_spark.distro.elf.target import Capability, Form
from vllm_spark.distro.ext.toolchain import Toolchain

DATA = Path(__file__).resolve().parents[2] / "data" / "wheel"
DEVICES = {"stock": None, "12.1": Capability(12, 1), "9.0": Capability(9, 0), "8.0": Capability(8, 0)}
Extract = Callable[[Path, str], dict[str, bytes]]


def text(ptx: bytes) -> bytes:
    """PTX without the zeros that end a stored one."""
    return ptx.rstrip(b"\0")


def digests(images: Iterable[bytes]) -> Counter[str]:
    return Counter(hashlib.sha256(one).hexdigest() for one in images)


def blank(file: Path, out: Path, device: Capability | None) -> Path:
    with FileSource(file) as source:
        edits = plan_blanking(read_shared_object(source).containers, device).edits if device else ()
        with out.open("wb") as target:
            target.writelines(chunks(EditedSource(source, edits)))
    return out


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("file", ["many.so", "suffixes.so", "speed.so"])
def test_cuobjdump_extracts_what_we_read(tmp_path: Path, extract: Extract, file: str, device: str) -> None:
    path = blank(DATA / file, tmp_path / file, DEVICES[device])
    with FileSource(path) as source:
        entries = [entry for one in read_shared_object(source).containers for entry in one.entries]
        ours = {
            form: [payload(source, entry) for entry in entries if entry.form is form] for form in (Form.CUBIN, Form.PTX)
        }
    elf, ptx = extract(path, "elf"), extract(path, "ptx")
    assert digests(elf.values()) == digests(ours[Form.CUBIN])
    assert digests(text(one) for one in ptx.values()) == digests(text(one) for one in ours[Form.PTX])
    # cuobjdump's names drop the f of cubins, and keep everything else
    assert sorted(re.findall(r"(sm_\w+)\.", " ".join(elf))) == sorted(
        entry.label.removesuffix("f") for entry in entries if entry.form is Form.CUBIN
    )


def test_nvdisasm_reads_a_kept_cubin(tmp_path: Path, extract: Extract, tools: Toolchain) -> None:
    path = blank(DATA / "many.so", tmp_path / "many.so", Capability(12, 1))
    ((_, cubin),) = extract(path, "elf").items()
    (tmp_path / "kept.cubin").write_bytes(cubin)
    listing = proc.run([tools.nvdisasm, tmp_path / "kept.cubin"], env=tools.env).text
    assert ".text.add_one" in listing
    assert "EXIT" in listing


def test_an_entry_with_a_zeroed_payload_is_refused(tmp_path: Path, tools: Toolchain) -> None:
    """Why blanking takes the entry out: with its header left, cuobjdump stops at the image and shows none after it."""
    content = bytearray((DATA / "many.so").read_bytes())
    with FileSource(DATA / "many.so") as source:
        entry = next(one for one in read_shared_object(source).containers[0].entries if one.label == "sm_80")
    content[entry.payload_offset : entry.payload_offset + entry.padded_size] = bytes(entry.padded_size)
    (tmp_path / "zeroed.so").write_bytes(content)
    done = proc.run([tools.cuobjdump, "--list-elf", tmp_path / "zeroed.so"], env=tools.env, check=False)
    assert done.status != 0
    assert "Uncompress failed" in done.output
