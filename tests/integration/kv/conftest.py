"""A CPU build of vLLM that serves: the patched release's Python with the compiled parts of `.venv-vllm`."""

import http.client
import os
import shutil
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from vllm_spark import paths
from vllm_spark.distro.series import trees
from vllm_spark.errors import ToolMissing
from vllm_spark.runtime.kv import cgroup

ROOT = Path(__file__).resolve().parents[3]
MODEL = """
import sys, torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
words = Tokenizer(models.BPE())
words.pre_tokenizer, words.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
alphabet = pre_tokenizers.ByteLevel.alphabet()
words.train_from_iterator(["hello world"] * 9, trainers.BpeTrainer(
    vocab_size=320, special_tokens=["<s>", "</s>"], initial_alphabet=alphabet))
PreTrainedTokenizerFast(tokenizer_object=words, bos_token="<s>", eos_token="</s>").save_pretrained(sys.argv[1])
torch.manual_seed(0)
config = LlamaConfig(vocab_size=320, hidden_size=64, intermediate_size=128, num_hidden_layers=2, head_dim=32,
    num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=512, bos_token_id=0, eos_token_id=1)
LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(sys.argv[1])
"""


@pytest.fixture(scope="session")
def vllm_python() -> Path:
    python = Path(os.environ.get("VLLM_SPARK_VLLM_PYTHON") or paths.repo_root() / ".venv-vllm/bin/python")
    if not python.exists():
        raise ToolMissing("no Python with a CPU build of vLLM", where=str(python), hint="make .venv-vllm/.done")
    return python


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory, vllm_python: Path) -> Path:
    """A folder for PYTHONPATH: patched vLLM, its compiled CPU parts, this project and its plugin entry."""
    folder = tmp_path_factory.mktemp("site")
    given = os.environ.get("VLLM_SPARK_TREE")
    tree = Path(given) if given else trees.full_tree()
    shutil.copytree(tree / "vllm", folder / "vllm", copy_function=os.symlink)
    built = next(vllm_python.parent.parent.glob("lib/python3*/site-packages/vllm"))
    for library in built.rglob("*.so"):
        target = folder / "vllm" / library.relative_to(built)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.symlink_to(library)
    (folder / "vllm_spark").symlink_to(ROOT / "vllm_spark")
    entry = "[vllm.general_plugins]\nspark = vllm_spark.runtime.plugin:register\n"
    for name, version, entries in (("vllm", "0.33.0+cpu", ""), ("vllm-spark", "0", entry)):
        info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        (info / "entry_points.txt").write_text(entries)
    return folder


@pytest.fixture(scope="session")
def environment(site: Path) -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("VLLM_", "PYTHON", "MAX_JOBS"))}
    return {
        **clean,
        "PYTHONPATH": str(site),
        "PYTHONDONTWRITEBYTECODE": "1",
        "VLLM_TARGET_DEVICE": "cpu",
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_SPARK_KV_TARGET": "need",
    }


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory, vllm_python: Path, environment: dict[str, str]) -> Path:
    folder = tmp_path_factory.mktemp("tiny-llama")
    subprocess.run([vllm_python, "-P", "-c", MODEL, folder], check=True, env=environment, capture_output=True)
    return folder


def own_folder() -> cgroup.Hierarchy:
    """The memory-controlled group of this process, below which a test may make one."""
    texts = (Path("/proc/self/cgroup").read_text(), Path("/proc/self/mountinfo").read_text())
    for hierarchy in cgroup.hierarchies(*texts):
        leaf = hierarchy.folders[0]
        if hierarchy.version == 1 and os.access(leaf, os.W_OK):
            return hierarchy
        # version 2: only a group without processes of its own may hand memory control down, so a sibling is made
        parent = leaf.parent if len(hierarchy.folders) > 1 else leaf
        control = parent / "cgroup.subtree_control"
        if os.access(control, os.W_OK) and "memory" in control.read_text().split():
            return cgroup.Hierarchy(2, (parent,))
    raise ToolMissing(
        "no writable cgroup with the memory controller",
        where="/sys/fs/cgroup",
        hint="run the tests as root, or under: systemd-run --user --scope -p Delegate=yes make test",
    )


@pytest.fixture
def limited() -> Iterator[Callable[[int], Path]]:
    """`limited(bytes)`: a cgroup of its own with that much memory and no swap."""
    hierarchy = own_folder()
    group = hierarchy.folders[0] / f"vllm-spark-test-{uuid.uuid4().hex[:8]}"
    group.mkdir()

    def limit(size: int) -> Path:
        (group / hierarchy.files.limit).write_text(str(size))
        swap = group / "memory.swap.max"
        if swap.exists():
            swap.write_text("0")
        return group

    yield limit
    deadline = time.monotonic() + 20
    while (group / "cgroup.procs").read_text() and time.monotonic() < deadline:
        time.sleep(0.2)  # processes of a server that has been told to end
    group.rmdir()


class Server:
    """One `vllm serve`, from its start to its end."""

    def __init__(self, argv: list[str], port: int, env: dict[str, str], log: Path) -> None:
        self.port = port
        self.log = log
        with log.open("wb") as file:
            self.process = subprocess.Popen(argv, env=env, stdout=file, stderr=subprocess.STDOUT)

    @property
    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def wait(self, seconds: float = 240) -> bool:
        """True when it serves, False when it ended."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                return False
            try:
                if self.ask("GET", "/health")[0] == 200:
                    return True
            except OSError:
                time.sleep(0.5)
        raise TimeoutError(f"neither served nor ended in {seconds} s:\n{self.text[-4000:]}")

    def ask(self, method: str, path: str, body: str = "") -> tuple[int, str]:
        """Status and text of one HTTP request."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(method, path, body, {"content-type": "application/json"})
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    def close(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@pytest.fixture
def serve(
    limited: Callable[[int], Path],  # set up first, so that servers have ended when it is removed
    vllm_python: Path,
    tiny_model: Path,
    environment: dict[str, str],
    tmp_path: Path,
    unused_port: int,
) -> Iterator[Callable[..., Server]]:
    started: list[Server] = []

    def start(*args: str, env: dict[str, str] | None = None, group: Path | None = None) -> Server:
        argv = [str(vllm_python), "-P", "-m", "vllm.entrypoints.cli.main", "serve", str(tiny_model)]
        argv += ["--host", "127.0.0.1", "--port", str(unused_port), "--served-model-name", "tiny"]
        argv += ["--max-model-len", "256", "--max-num-seqs", "4", "--dtype", "bfloat16", "--enforce-eager", *args]
        if group is not None:
            argv = ["sh", "-c", 'echo $$ > "$0/cgroup.procs"; exec "$@"', str(group), *argv]
        started.append(Server(argv, unused_port, {**environment, **(env or {})}, tmp_path / f"{len(started)}.log"))
        return started[-1]

    yield start
    for server in started:
        server.close()


@pytest.fixture
def unused_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
