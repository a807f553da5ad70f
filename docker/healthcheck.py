"""Is the server of this container able to give a token? Exit code 0 if so, 1 with one line if not.

`/health` answers as long as the process lives, also while the engine hangs. This asks the first model for one token.
Address and API key are read from the server's own command line (process 1) and environment, so that they need not
be told twice. For servers without completions (embeddings), set another check: `docker run --health-cmd …`.
"""  # noqa: INP001 - a program that is copied into the image

from __future__ import annotations

import json
import os
import ssl
import sys
import urllib.error
import urllib.request
from pathlib import Path

TIMEOUT = 40  # seconds; below the image's HEALTHCHECK time-out


def option(words: list[str], name: str, default: str = "") -> str:
    """The last value of `--name VALUE` or `--name=VALUE`; vLLM also takes underscores."""
    found = default
    for word, after in zip(words, [*words[1:], ""], strict=True):
        key, separator, value = word.partition("=")
        if key.replace("_", "-") == f"--{name}":
            found = value if separator else after
    return found


def address(words: list[str]) -> str:
    """Where the server listens, as this container reaches it."""
    host = option(words, "host")
    host = "127.0.0.1" if host in {"", "0.0.0.0"} else "[::1]" if host == "::" else f"[{host}]" if ":" in host else host  # noqa: S104
    return f"{'https' if option(words, 'ssl-certfile') else 'http'}://{host}:{option(words, 'port', '8000')}"


def ask(url: str, key: str, body: dict[str, object] | None = None) -> dict[str, object]:
    """One request; JSON in, JSON out."""
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
    request = urllib.request.Request(url, json.dumps(body).encode() if body else None, headers)  # noqa: S310
    # The certificate names the public host and not this loopback; nothing secret but the key goes to ourselves.
    context = ssl._create_unverified_context() if url.startswith("https:") else None  # noqa: S323, SLF001
    with urllib.request.urlopen(request, timeout=TIMEOUT, context=context) as reply:  # noqa: S310
        answer: dict[str, object] = json.load(reply)
    return answer


def check(words: list[str], environment: dict[str, str]) -> str:
    """What is wrong, or nothing."""
    key = option(words, "api-key", environment.get("VLLM_API_KEY", ""))
    base = address(words)
    try:
        models = ask(f"{base}/v1/models", key)["data"]
        model = models[0]["id"]  # type: ignore[index]
        prompt = {"model": model, "prompt": "1 2 3", "max_tokens": 1, "min_tokens": 1, "temperature": 0}
        usage = ask(f"{base}/v1/completions", key, prompt)["usage"]
        tokens = usage["completion_tokens"]  # type: ignore[index]
    except (OSError, ValueError, LookupError, TypeError) as err:
        return f"no token from {base}: {type(err).__name__}: {err}"
    return "" if tokens == 1 else f"{tokens} tokens from {base}, one was asked for"


def main() -> int:
    """Check the server that is process 1."""
    words = Path("/proc/1/cmdline").read_bytes().decode(errors="replace").split("\0")
    problem = check(words, dict(os.environ))
    if problem:
        print(problem)
    return 1 if problem else 0


if __name__ == "__main__":
    sys.exit(main())
