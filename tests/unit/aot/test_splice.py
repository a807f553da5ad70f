from dataclasses import replace

import pytest

from tests.unit.aot.conftest import Shelf, entry, only, plain_ptx, reduced
from vllm_spark.distro.aot.candidates import text
from vllm_spark.distro.aot.program import Program
from vllm_spark.distro.aot.splice import Absent, Splice, State, check_spliced, splice
from vllm_spark.distro.elf.payload import payload
from vllm_spark.distro.elf.report import kernel_support, lost_kernels
from vllm_spark.distro.elf.shared import read_shared_object
from vllm_spark.distro.elf.source import Edit, EditedSource, FileSource, Source, chunks
from vllm_spark.distro.elf.target import Support
from vllm_spark.errors import ArtefactError


def apply(source: Source, shelf: Shelf) -> tuple[Splice, EditedSource]:
    before = read_shared_object(source).containers
    plan = splice(source, before, shelf)
    result = EditedSource(source, plan.edits)
    check_spliced(before, source, read_shared_object(result).containers, result, plan, shelf)
    return plan, result


@pytest.mark.parametrize("keep_ptx", [False, True])
def test_replaces_ptx(waiting: EditedSource, program: Program, keep_ptx: bool) -> None:
    shelf = Shelf(program, keep_ptx)
    plan, result = apply(waiting, shelf)
    assert [(one.label, one.kernels, one.state, one.size) for one in plan.images] == [
        ("compute_90", 3, State.COMPILED, len(program.image))
    ]
    container, old = only(result), only(waiting)
    assert [one.label for one in container.entries] == ["sm_121", "compute_90"][: 1 + keep_ptx]
    assert payload(result, container.entries[0]) == program.cubin
    assert (container.offset, result.size) == (old.offset, waiting.size)
    before, after = (kernel_support(one, read_shared_object(one).containers, shelf.device) for one in (waiting, result))
    assert set(before.values()) == {Support.JIT}
    assert set(after.values()) == {Support.NATIVE}
    assert before.keys() == after.keys()
    assert lost_kernels(before, after) == []


def test_touches_the_fat_binary_only(waiting: EditedSource, program: Program) -> None:
    _, result = apply(waiting, Shelf(program))
    old, new = b"".join(chunks(waiting)), b"".join(chunks(result))
    container = only(waiting)
    assert old[: container.offset] == new[: container.offset]
    end = container.offset + container.room
    assert old[end:] == new[end:]
    assert not new[container.offset + only(result).size : end].strip(b"\0")


def test_twice_is_once(waiting: EditedSource, program: Program) -> None:
    _, once = apply(waiting, Shelf(program))
    plan = splice(once, read_shared_object(once).containers, Shelf(program))
    assert (plan.edits, [one.state for one in plan.images]) == ((), [State.NATIVE])


@pytest.mark.parametrize("absent", [Absent(State.MISSING), Absent(State.KEPT, "ptxas 1: no")])
def test_keeps_what_there_is_nothing_for(waiting: EditedSource, absent: Absent) -> None:
    plan, _ = apply(waiting, Shelf(absent))
    assert (plan.edits, plan.programs) == ((), {})
    assert [(one.state, one.reason) for one in plan.images] == [(absent.state, absent.reason)]


def test_keeps_what_does_not_fit(waiting: EditedSource, program: Program) -> None:
    room = only(waiting).room
    large = Program(program.image + bytes(room - len(program.image) - 8), program.cubin)
    plan, _ = apply(waiting, Shelf(large))
    (image,) = plan.images
    assert (plan.edits, image.state) == ((), State.KEPT)
    assert image.reason == f"needs {room + 8} bytes where {room} are"


def test_fits_to_the_last_byte(waiting: EditedSource, program: Program) -> None:
    shelf = Shelf(program, keep_ptx=True)
    plan = splice(waiting, read_shared_object(waiting).containers, shelf)
    (edit,) = plan.edits
    tight = replace(only(waiting), room=edit.filled)
    assert [one.state for one in splice(waiting, [tight], shelf).images] == [State.COMPILED]
    tighter = replace(tight, room=edit.filled - 1)
    assert [one.state for one in splice(waiting, [tighter], shelf).images] == [State.KEPT]


def test_keeps_ptx_whose_sibling_has_more(suffixes: FileSource, program: Program) -> None:
    """The driver takes the later PTX; with it gone, a kernel that only the other one has would be lost for good."""
    later, earlier = entry(suffixes, "compute_121a"), entry(suffixes, "compute_90")
    assert [one.state for one in apply(reduced(suffixes, later, earlier), Shelf(program))[0].images] == [State.COMPILED]
    more = text(suffixes, earlier) + b".visible .entry only_here() { ret; }\n"
    plan, _ = apply(reduced(suffixes, later, plain_ptx(more, 90)), Shelf(program))
    (image,) = plan.images
    assert (image.state, image.label) == (State.KEPT, "compute_121a")
    assert image.reason == "compute_90 beside it has 1 kernels more, such as only_here"


def test_never_puts_another_program_there(waiting: EditedSource, suffixes: FileSource, program: Program) -> None:
    cubin = payload(suffixes, entry(suffixes, "sm_120f"))
    with pytest.raises(ArtefactError, match="assembled for sm_120f, not sm_121"):
        splice(waiting, read_shared_object(waiting).containers, Shelf(replace(program, cubin=cubin)))


@pytest.mark.parametrize("place", ["payload", "label", "added"])
def test_the_check_finds_a_changed_image(waiting: EditedSource, program: Program, place: str) -> None:
    shelf = Shelf(program)
    before = read_shared_object(waiting).containers
    plan, result = apply(waiting, shelf)
    new = only(result)
    image = new.entries[0]
    edits = {
        "payload": Edit(image.payload_offset + 40, 8, (b"oops" * 2,)),
        "label": Edit(image.offset + 28, 4, (b"\x78\0\0\0",)),
        "added": Edit(new.offset + 8, 8, ((new.body_size + image.size).to_bytes(8, "little"),)),
    }
    after = EditedSource(result, [edits[place]])
    if place == "added":
        after = EditedSource(after, [Edit(new.offset + new.size, image.size, (program.image,))])
    with pytest.raises(ArtefactError):
        check_spliced(before, waiting, read_shared_object(after).containers, after, plan, shelf)


def test_the_check_finds_an_emptied_one(waiting: EditedSource, program: Program) -> None:
    shelf = Shelf(program)
    before = read_shared_object(waiting).containers
    plan, _ = apply(waiting, shelf)
    empty = reduced(waiting)
    with pytest.raises(ArtefactError, match="moved or emptied"):
        check_spliced(before, waiting, read_shared_object(empty).containers, empty, plan, shelf)
