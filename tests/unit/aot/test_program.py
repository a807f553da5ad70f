import pytest

from tests.unit.aot.conftest import SM_121, entry, only, reduced
from vllm_spark.distro.aot.candidates import text
from vllm_spark.distro.aot.program import Program, check_same, read_program
from vllm_spark.distro.elf.fatbin import container_header
from vllm_spark.distro.elf.kernels import ptx_variables
from vllm_spark.distro.elf.payload import payload
from vllm_spark.distro.elf.source import FileSource
from vllm_spark.distro.elf.target import Suffix, Target
from vllm_spark.errors import ArtefactError


def alone(image: bytes) -> bytes:
    return container_header(1, len(image)) + image


def test_reads_back(program: Program) -> None:
    assert read_program(alone(program.image), SM_121, "x") == program


@pytest.mark.parametrize(
    ("labels", "what"),
    [
        ((), "holds nothing instead of one sm_121"),
        (("sm_120f",), "holds sm_120f instead"),
        (("compute_90",), "holds compute_90 instead"),
        (("sm_121", "compute_90"), "holds sm_121, compute_90 instead"),
    ],
)
def test_must_be_one_cubin_for_the_target(suffixes: FileSource, labels: tuple[str, ...], what: str) -> None:
    source = reduced(suffixes, *(entry(suffixes, label) for label in labels))
    container = only(source)
    with pytest.raises(ArtefactError, match=what):
        read_program(source.read(container.offset, container.size), SM_121, "x")


def test_damaged(program: Program) -> None:
    whole = bytearray(alone(program.image))
    whole[-40:-20] = bytes(20)
    with pytest.raises(ArtefactError):
        read_program(bytes(whole), SM_121, "x")
    with pytest.raises(ArtefactError, match="not a fat binary"):
        read_program(b"garbage!" * 20, SM_121, "x")


def test_same_program(suffixes: FileSource, program: Program) -> None:
    ptx = text(suffixes, entry(suffixes, "compute_90"))
    check_same(ptx, program.cubin, SM_121, "x")
    with pytest.raises(ArtefactError, match="assembled for sm_121, not sm_121a"):
        check_same(ptx, program.cubin, Target(121, Suffix.ARCH), "x")
    other = payload(suffixes, entry(suffixes, "sm_121a"))
    with pytest.raises(ArtefactError, match="assembled for sm_121a, not sm_121"):
        check_same(ptx, other, SM_121, "x")
    with pytest.raises(ArtefactError, match="1 kernels differ from the PTX, such as add_two"):
        check_same(ptx + b"\n.visible .entry add_two() { ret; }\n", program.cubin, SM_121, "x")
    with pytest.raises(ArtefactError, match="2 kernels differ"):
        check_same(ptx.replace(b".entry add_one", b".entry add_two"), program.cubin, SM_121, "x")
    with pytest.raises(ArtefactError, match="1 variables of the PTX are missing, such as table"):
        check_same(ptx + b"\n.global .align 4 .b8 table[32];\n", program.cubin, SM_121, "x")
    with pytest.raises(ArtefactError, match="no cubin"):
        check_same(ptx, b"\x7fELF", SM_121, "x")


@pytest.mark.parametrize(
    ("line", "names"),
    [
        (b".global .align 4 .b8 table[32];", ("table",)),
        (b".const .align 4 .u32 c1 = 3;", ("c1",)),
        (b".visible .global .align 4 .f32 _Z1xv[2][3] = {0f3F800000, 2};", ("_Z1xv",)),
        (b".global .attribute(.managed) .align 4 .u32 mg;", ("mg",)),
        (b"\t.weak .const .align 8 .u64 $str$1[1] = {f};", ("$str$1",)),
        (b".common .global .u32 c;", ("c",)),
        (b"\tld.global.f32 \t%f1, [table+4];", ()),
        (b"\tcvta.to.global.u64 \t%rd2, %rd1;", ()),
        (b".visible .entry k(.param .u64 .ptr .global .align 4 p)", ()),
        (b"\t.shared .align 4 .b8 s[32];", ()),
        (b".extern .global .u32 elsewhere;", ()),
    ],
)
def test_variables_of_ptx(line: bytes, names: tuple[str, ...]) -> None:
    assert ptx_variables(b".version 9.0\n.target sm_80\n" + line + b"\n") == names
