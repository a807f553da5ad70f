import base64
import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from installer.records import parse_record_file

from vllm_spark.distro.wheel.archive import Wheel
from vllm_spark.distro.wheel.record import Row, digest, format_record, read_record, verify_record
from vllm_spark.errors import IntegrityError

INFO = "demo-1.2.0.dist-info"
Build = Callable[..., Path]
names = st.text(
    st.characters(blacklist_categories=("Cs", "Cc"), blacklist_characters="\\\u0085\u2028\u2029"), min_size=1
)


@given(st.dictionaries(names, st.binary(max_size=40), max_size=8))
def test_what_is_written_is_read_by_another_library(members: dict[str, bytes]) -> None:
    rows = [digest([content[:7], content[7:]], name) for name, content in members.items()]
    text = format_record(rows, "d.dist-info").decode()
    read = list(parse_record_file(text.split("\n")[:-1]))
    assert read[-1] == ("d.dist-info/RECORD", "", "")
    assert {Row(name, hash_, int(size)) for name, hash_, size in read[:-1]} == set(rows)
    assert format_record(reversed(rows), "d.dist-info").decode() == text


def test_digest() -> None:
    expected = base64.urlsafe_b64encode(hashlib.sha256(b"abc").digest()).decode().rstrip("=")
    assert digest([b"a", b"bc"], "x") == Row("x", f"sha256={expected}", 3)


def test_sound(build_wheel: Build, files: dict[str, bytes]) -> None:
    path = build_wheel()
    verify_record(path)
    with Wheel(path) as wheel:
        assert set(read_record(wheel)) == set(files)


def replace(old: bytes, new: bytes) -> Callable[[bytes], bytes]:
    def change(record: bytes) -> bytes:
        assert old in record
        return record.replace(old, new)

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (replace(b"demo/core.py,sha256=", b"demo/core.py,sha256=A"), "didn't match|invalid"),
        (replace(b"demo/core.py,sha256=", b"demo/core.py,md5="), "no SHA-256"),
        (replace(b",600\n", b",601\n"), "600 bytes, RECORD says 601"),
        (replace(b",600\n", b",\n"), "malformed RECORD"),
        (replace(b",600\n", b",600,7\n"), "malformed RECORD"),
        (replace(b"demo/core.py", b"demo/gone.py"), "demo/core.py: not listed in RECORD"),
        (lambda record: record + b"demo/gone.py,sha256=x,1\n", "demo/gone.py: listed in RECORD but missing"),
        (lambda record: record + record.splitlines(keepends=True)[0], "listed twice"),
        (lambda record: record + b"\xff\n", "malformed RECORD"),
    ],
)
def test_wrong_record(
    build_wheel: Build, files: dict[str, bytes], change: Callable[[bytes], bytes], message: str
) -> None:
    with Wheel(build_wheel()) as wheel:
        record = wheel.read(f"{INFO}/RECORD")
    path = build_wheel(record=change(record))
    with pytest.raises(IntegrityError, match=message):
        verify_record(path)


def test_wrong_bytes_are_named(build_wheel: Build) -> None:
    with Wheel(build_wheel()) as wheel:
        record = wheel.read(f"{INFO}/RECORD")
    path = build_wheel({"demo/core.py": b"print('hellO')\n" * 40}, record=record)
    with pytest.raises(IntegrityError, match=r"RECORD does not verify: hash / size of demo/core\.py") as caught:
        verify_record(path)
    assert "\n" not in str(caught.value)


def test_damaged_member(build_wheel: Build) -> None:
    path = build_wheel()
    with Wheel(path) as wheel:
        start = wheel.members["demo/many.abi3.so"].header_offset
    content = bytearray(path.read_bytes())
    content[start + 700] ^= 0xFF
    path.write_bytes(content)
    with pytest.raises(IntegrityError, match="damaged"):
        verify_record(path)
