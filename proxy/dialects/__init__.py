"""The engines by name."""

from __future__ import annotations

from proxy.dialects.hosted import DeepSeek, Kimi, OpenRouter
from proxy.dialects.llama_server import LlamaServer
from proxy.dialects.ollama import Ollama
from proxy.dialects.plain import Dialect
from proxy.dialects.sglang import SGLang
from proxy.dialects.vllm import VLLM


class LMStudio(Dialect):
    """LM Studio: the plain dialect on the owner's hardware."""

    name = "lmstudio"
    refuses_missing = False
    tells_properties = True
    cap_fields = ("max_tokens",)


DIALECTS: dict[str, Dialect] = {
    dialect.name: dialect
    for dialect in (LlamaServer(), VLLM(), SGLang(), Kimi(), DeepSeek(), Ollama(), LMStudio(), OpenRouter(), Dialect())
}
"""Engine name → dialect. `auto` is not among them: `backends.py` finds out which of these it is."""

__all__ = ["DIALECTS", "Dialect"]
