from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vllm_spark.distro.elf.source import Edit, EditedSource, FileSource, Span, chunks
from vllm_spark.errors import ArtefactError

Make = Callable[[bytes], FileSource]


@st.composite
def edited(draw: st.DrawFn) -> tuple[bytes, list[Edit]]:
    content = draw(st.binary(min_size=1, max_size=200))
    cuts = sorted(draw(st.sets(st.integers(0, len(content)), max_size=6)))
    edits = []
    for start, end in zip(cuts[::2], cuts[1::2], strict=False):
        room = end - start
        parts: list[Span | bytes] = []
        while room and draw(st.booleans()):
            count = draw(st.integers(0, room))
            if draw(st.booleans()):
                parts.append(Span(draw(st.integers(0, len(content) - count)), count))
            else:
                parts.append(draw(st.binary(min_size=count, max_size=count)))
            room -= count
        edits.append(Edit(start, end - start, tuple(parts)))
    return content, draw(st.permutations(edits))


def by_hand(content: bytes, edits: list[Edit]) -> bytes:
    out = bytearray(content)
    for edit in edits:
        new = b"".join(
            content[part.offset : part.offset + part.size] if isinstance(part, Span) else part for part in edit.parts
        )
        out[edit.offset : edit.end] = new.ljust(edit.size, b"\0")
    return bytes(out)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(case=edited(), at=st.integers(0, 200), size=st.integers(0, 200))
def test_edited_view_equals_the_edited_bytes(
    from_bytes: Make, case: tuple[bytes, list[Edit]], at: int, size: int
) -> None:
    content, edits = case
    expected = by_hand(content, edits)
    view = EditedSource(from_bytes(content), edits)
    assert b"".join(chunks(view)) == expected
    if at + size <= len(content):
        assert view.read(at, size) == expected[at : at + size]
    else:
        with pytest.raises(ArtefactError, match="ends before byte"):
            view.read(at, size)


def test_large_file_comes_in_pieces(from_bytes: Make) -> None:
    content = bytes(range(256)) * 12_289
    pieces = list(chunks(from_bytes(content)))
    assert max(map(len, pieces)) == 1 << 20
    assert b"".join(pieces) == content


def test_overlapping_and_overlong_edits_are_defects(from_bytes: Make) -> None:
    source = from_bytes(bytes(10))
    with pytest.raises(ValueError, match="overlaps"):
        EditedSource(source, [Edit(0, 5), Edit(4, 2)])
    with pytest.raises(ValueError, match="leaves the file"):
        EditedSource(source, [Edit(8, 3)])
    with pytest.raises(ValueError, match="do not fit"):
        Edit(0, 2, (b"abc",))


@pytest.mark.parametrize(("at", "size"), [(-1, 2), (0, -1), (9, 2), (11, 0)])
def test_reading_outside_the_file(from_bytes: Make, at: int, size: int) -> None:
    with pytest.raises(ArtefactError, match="ends before byte"):
        from_bytes(bytes(10)).read(at, size)
