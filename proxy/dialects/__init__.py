"""The engines by name."""

from __future__ import annotations

from proxy.dialects.advice import Advice, Finding, Level
from proxy.dialects.deepseek import DeepSeek
from proxy.dialects.kimi import Kimi
from proxy.dialects.llama_server import LlamaServer
from proxy.dialects.lmstudio import LMStudio
from proxy.dialects.ollama import Ollama
from proxy.dialects.openrouter import OpenRouter
from proxy.dialects.plain import About, Dialect, OpenAI, Question, tokens_in
from proxy.dialects.sglang import SGLang
from proxy.dialects.tokenspeed import TokenSpeed
from proxy.dialects.unsloth import Unsloth
from proxy.dialects.vllm import VLLM

_ALL = (
    LlamaServer(),
    VLLM(),
    SGLang(),
    TokenSpeed(),
    Unsloth(),
    Ollama(),
    LMStudio(),
    Kimi(),
    DeepSeek(),
    OpenRouter(),
    OpenAI(),
)
DIALECTS: dict[str, Dialect] = {dialect.name: dialect for dialect in _ALL}
"""Engine name → dialect, in the order in which a probe asks for them. `auto` is not among them: `probes.py` finds out
which of these a server is."""

__all__ = ["DIALECTS", "About", "Advice", "Dialect", "Finding", "Level", "Question", "tokens_in"]
