"""How the scripted backend writes one answer in each engine's manner."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import openai
import pytest
from openai import AsyncOpenAI

from proxy.testing import STYLES, FakeBackend, Reply, ToolCall, answer, error

TLS = ssl.create_default_context()  # made once: it is most of the cost of a client

ASK: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "What is there?"}]}
STREAM = ASK | {"stream": True}
WITH_USAGE = STREAM | {"stream_options": {"include_usage": True}}

LIST_DIR = ToolCall("list_dir", '{"path": "/data", "deep": true}', "functions.list_dir:0")
READ = ToolCall("read", '{"file":"ä\u2028"}', "functions.read:1")
SAID: dict[str, dict[str, Any]] = {
    "thought and text": {"text": "Two  files.\n\nThat is all.", "reasoning": "The tool\u2028returned two names."},
    "text alone": {"text": "Hello."},
    "thought and calls": {"reasoning": "I call both.", "calls": [LIST_DIR, READ]},
    "all three": {"text": "Let me look.", "reasoning": "I call one.", "calls": [LIST_DIR]},
    "thought alone": {"reasoning": "It took all", "finish": "length"},
    "nothing": {},
}
PLAIN = [{"reasoning_content": "a"}, {"content": "b"}, {}]
ARGUMENTS = [({"arguments": "12345678"}, None), ({"arguments": "9"}, None)]
DETAILS_OF_A = [{"type": "reasoning.text", "text": "a", "format": "unknown", "index": 0}]
THOUGHT_OF_2 = {"completion_tokens_details": {"reasoning_tokens": 2}}


@asynccontextmanager
async def sdk(backend: FakeBackend) -> AsyncIterator[AsyncOpenAI]:
    """The real SDK, which repeats nothing."""
    http = openai.DefaultAsyncHttpxClient(verify=TLS)
    async with AsyncOpenAI(base_url=backend.url, api_key="k", max_retries=0, timeout=5, http_client=http) as client:
        yield client


async def post(backend: FakeBackend, body: dict[str, Any] = ASK) -> httpx.Response:
    """One request over a connection of its own."""
    async with httpx.AsyncClient(timeout=5, verify=TLS) as client:
        return await client.post(backend.url + "/chat/completions", json=body)


async def chunks(backend: FakeBackend, body: dict[str, Any] = STREAM) -> list[Any]:
    """The decoded events of a stream, without comments; `[DONE]` must be the last and is left out."""
    blocks = (await post(backend, body)).text.split("\n\n")
    *data, done = [line.removeprefix("data: ") for line in blocks if line and not line.startswith(":")]
    assert done == "[DONE]"
    return [json.loads(text) for text in data]


async def deltas(style: str, reply: Reply) -> list[Any]:
    """The deltas of a reply as this style writes them."""
    async with FakeBackend(reply, style=style) as backend:
        return [choice["delta"] for chunk in await chunks(backend) for choice in chunk["choices"]]


async def asked(backend: FakeBackend, *paths: str) -> dict[str, httpx.Response]:
    """A GET of each path, from the server's root."""
    async with httpx.AsyncClient(timeout=5, verify=TLS) as client:
        return {path: await client.get(backend.url.removesuffix("/v1") + path) for path in paths}


def thought_of(message: Any) -> str | None:
    """The thought of a message or delta, under either name."""
    return getattr(message, "reasoning_content", None) or getattr(message, "reasoning", None)


async def whole_message(client: AsyncOpenAI) -> dict[str, Any]:
    """What the SDK reads from a whole answer."""
    completion = await client.chat.completions.create(**ASK)
    [choice] = completion.choices
    calls = [(call.id, call.function.name, call.function.arguments) for call in choice.message.tool_calls or []]
    text, thought = choice.message.content or "", thought_of(choice.message) or ""
    return {"text": text, "reasoning": thought, "calls": calls, "finish": choice.finish_reason}


async def streamed_message(client: AsyncOpenAI) -> dict[str, Any]:
    """The same, gathered from a stream."""
    text = thought = finish = ""
    calls: dict[int, list[str]] = {}
    async for chunk in await client.chat.completions.create(**STREAM):
        for choice in chunk.choices:
            text += choice.delta.content or ""
            thought += thought_of(choice.delta) or ""
            finish = choice.finish_reason or finish
            for call in choice.delta.tool_calls or []:
                got = calls.setdefault(call.index, ["", "", ""])
                got[0] += call.id or ""
                got[1] += (call.function and call.function.name) or ""
                got[2] += (call.function and call.function.arguments) or ""
    return {"text": text, "reasoning": thought, "calls": [tuple(got) for got in calls.values()], "finish": finish}


class TestAnswers:
    """One answer in every manner."""

    @pytest.mark.parametrize("said", SAID.values(), ids=SAID)
    @pytest.mark.parametrize("style", STYLES)
    async def test_the_sdk_reads_the_same_message_whole_and_streamed(self, style: str, said: dict[str, Any]) -> None:
        """Whatever the style, the openai SDK gets the scripted message both ways."""
        calls = [(call.id, call.name, call.arguments) for call in said.get("calls", ())]
        finish = "tool_calls" if calls else "stop"
        wanted = {"text": "", "reasoning": "", "finish": finish} | said | {"calls": calls}
        async with FakeBackend(answer(**said), style=style) as backend, sdk(backend) as client:
            assert await whole_message(client) == wanted
            assert await streamed_message(client) == wanted

    @pytest.mark.parametrize("style", STYLES)
    async def test_usage_is_the_same_whole_and_streamed(self, style: str) -> None:
        """A stream that is asked for its usage reports what the whole answer reports, once."""
        async with FakeBackend(answer("One two three.", reasoning="Four five."), style=style) as backend:
            whole = (await post(backend)).json()["usage"]
            found = [
                usage
                for chunk in await chunks(backend, WITH_USAGE)
                for usage in [chunk.get("usage"), *(choice.get("usage") for choice in chunk["choices"])]
                if usage
            ]
        assert found == [whole]
        assert (whole["prompt_tokens"], whole["completion_tokens"], whole["total_tokens"]) == (3, 5, 8)

    @pytest.mark.parametrize("style", STYLES)
    async def test_usage_comes_unasked_only_from_kimi(self, style: str) -> None:
        """Without `include_usage` a stream says nothing of usage, but Moonshot's does."""
        async with FakeBackend(answer("One."), style=style) as backend:
            assert ("prompt_tokens" in json.dumps(await chunks(backend))) == (style == "kimi")

    @pytest.mark.parametrize("style", STYLES)
    async def test_usage_can_be_scripted_or_left_out(self, style: str) -> None:
        """A scripted usage goes out as it is; an empty one is none."""
        scripted = {"prompt_tokens": 80, "completion_tokens": 12, "total_tokens": 92, "odd": None}
        async with FakeBackend(answer("x", usage=scripted), answer("x", usage={}), style=style) as backend:
            assert (await post(backend)).json()["usage"] == scripted
            assert "usage" not in (await post(backend)).json()
            assert "prompt_tokens" not in json.dumps(await chunks(backend, WITH_USAGE))

    async def test_a_thought_in_the_history_is_counted(self) -> None:
        """The prompt is larger where past thoughts came along, under either name."""
        past = [{"role": "assistant", "content": "Hi.", "reasoning": "a b c"}, *ASK["messages"]]
        async with FakeBackend(answer("x")) as backend:
            assert (await post(backend, ASK | {"messages": past})).json()["usage"]["prompt_tokens"] == 7

    async def test_deltas_are_words_or_so_many_characters(self) -> None:
        """`split` cuts by characters; without it a delta is a word with the blanks after it."""
        words, pairs = await deltas("openai", answer(" a  bc\nd")), await deltas("openai", answer("abcde", split=2))
        assert [delta["content"] for delta in words[1:-1]] == [" ", "a  ", "bc\n", "d"]
        assert [delta["content"] for delta in pairs[1:-1]] == ["ab", "cd", "e"]

    async def test_the_thought_can_have_another_name(self) -> None:
        """`field` overrides the name that the style has."""
        reply = answer("x", reasoning="y", field="thinking")
        assert {"thinking": "y"} in await deltas("openai", reply)
        async with FakeBackend(reply) as backend:
            assert (await post(backend)).json()["choices"][0]["message"]["thinking"] == "y"

    async def test_an_empty_thought_is_not_none(self) -> None:
        """`reasoning=""` sends the field, None does not: Kimi means something by it."""
        assert {"reasoning_content": ""} in await deltas("kimi", answer("x", reasoning=""))
        assert "reasoning" not in json.dumps(await deltas("kimi", answer("x")))

    @pytest.mark.parametrize("style", STYLES)
    async def test_made_ids_repeat_in_every_conversation(self, style: str) -> None:
        """A call without an id is numbered by the calls before it in the conversation, in the engine's manner."""
        past = {"role": "assistant", "tool_calls": [{"id": "a"}, {"id": "b"}]}
        body = ASK | {"messages": [*ASK["messages"], past]}
        wanted = {"kimi": "functions.read:2", "vllm": "functions.read:2", "sglang": "read:2", "lmstudio": "000000002"}
        async with FakeBackend(answer(calls=[ToolCall("read", "{}")]), style=style) as backend:
            ids = [(await post(backend, body)).json()["choices"][0]["message"]["tool_calls"][0]["id"] for _ in range(2)]
        assert ids == [wanted.get(style, "call_" + "2".zfill(24))] * 2

    @pytest.mark.parametrize("style", STYLES)
    async def test_a_complete_answer_is_no_hang_up(self, style: str) -> None:
        """The SDK leaves at `[DONE]`; that is not too early."""
        async with FakeBackend(answer("a b c"), style=style) as backend:
            async with sdk(backend) as client:
                await streamed_message(client)
                await whole_message(client)
            assert [await request.hung_up() for request in backend.requests] == [False, False]


class TestManners:
    """What each engine does differently."""

    @pytest.mark.parametrize(
        ("style", "wanted"),
        [
            ("openai", [{"role": "assistant", "content": ""}, *PLAIN]),
            ("llama-server", [{"role": "assistant", "content": None}, *PLAIN]),
            ("vllm", [{"role": "assistant", "content": ""}, {"reasoning": ""}, {"reasoning": "a"}, {"content": "b"}]),
            (
                "sglang",
                [
                    {"role": "assistant", "content": "", "reasoning_content": None},
                    {"reasoning_content": "a"},
                    {"content": "b", "reasoning_content": None},
                    {"reasoning_content": None},
                ],
            ),
            ("ollama", [{"role": "assistant", "content": "", "reasoning": "a"}, {"content": "b"}, {}]),
            ("kimi", [{"role": "assistant", "content": ""}, *PLAIN]),
            ("llama-router", [{"role": "assistant", "content": None}, *PLAIN]),
            (
                "tokenspeed",
                [
                    {"role": "assistant", "content": ""},
                    {"role": "assistant", "reasoning_content": "a", "reasoning": "a"},
                    {"content": "b", "role": "assistant", "reasoning_content": None},
                    {"role": "assistant"},
                ],
            ),
            (
                "unsloth",
                [{"role": "assistant", "content": ""}, {"content": "", "reasoning_content": "a"}, {"content": "b"}, {}],
            ),
            ("lmstudio", [{"role": "assistant", "reasoning_content": "a"}, {"content": "b"}, {}]),
            (
                "deepseek",
                [
                    {"role": "assistant", "content": None, "reasoning_content": ""},
                    {"content": None, "reasoning_content": "a"},
                    {"content": "b", "reasoning_content": None},
                    {"content": "", "reasoning_content": None},
                ],
            ),
            (
                "openrouter",
                [
                    {"role": "assistant", "content": "", "reasoning": "a", "reasoning_details": DETAILS_OF_A},
                    {"role": "assistant", "content": "b"},
                    {"role": "assistant", "content": ""},
                ],
            ),
        ],
    )
    async def test_deltas(self, style: str, wanted: list[Any]) -> None:
        """First chunk, nulls and the last delta are the engine's own."""
        assert await deltas(style, answer("b", reasoning="a")) == wanted

    @pytest.mark.parametrize(
        ("style", "wanted"),
        [
            ("openai", [({"name": "f", "arguments": ""}, "i"), *ARGUMENTS]),
            ("llama-server", [({"name": "f", "arguments": "12345678"}, "i"), ARGUMENTS[1]]),
            ("vllm", [({"name": "f"}, "i"), *ARGUMENTS]),
            (
                "sglang",
                [
                    ({"name": "f", "arguments": ""}, "i"),
                    ({"name": None, "arguments": "12345678"}, None),
                    ({"name": None, "arguments": "9"}, None),
                ],
            ),
            ("ollama", [({"name": "f", "arguments": "123456789"}, "i")]),
            ("kimi", [({"name": "f", "arguments": ""}, "i"), *ARGUMENTS]),
            ("lmstudio", [({"name": "f", "arguments": ""}, "i"), *ARGUMENTS]),
            ("openrouter", [({"name": "f", "arguments": ""}, "i"), *ARGUMENTS]),
        ],
    )
    async def test_tool_call_fragments(self, style: str, wanted: list[Any]) -> None:
        """A call is cut as the engine cuts it."""
        reply = answer(calls=[ToolCall("f", "123456789", "i")])
        fragments = [part for delta in await deltas(style, reply) for part in delta.get("tool_calls", [])]
        assert [(part["function"], part.get("id")) for part in fragments] == wanted
        assert all("id" in part for part in fragments) == (style in ("sglang", "ollama"))

    async def test_llama_server_tells_its_speed_unasked_in_its_own_order(self) -> None:
        """`timings` sit on the last JSON chunk, with or without usage, and agree with the usage."""
        async with FakeBackend(answer("a b", reasoning="c"), style="llama-server") as backend:
            plain, asked = await chunks(backend), await chunks(backend, WITH_USAGE)
            whole = (await post(backend)).json()
        assert [index for index, chunk in enumerate(plain) if "timings" in chunk] == [len(plain) - 1]
        assert [index for index, chunk in enumerate(asked) if "timings" in chunk] == [len(asked) - 1]
        assert list(plain[1])[:2] == ["choices", "created"]
        assert list(asked[-1]) == [*plain[1], "usage", "timings"]
        assert plain[-1]["timings"] == asked[-1]["timings"] == whole["timings"]
        assert (whole["timings"]["prompt_n"], whole["timings"]["predicted_n"]) == (3, 3)

    async def test_vllm_finishes_with_the_last_delta(self) -> None:
        """The finish chunk of vLLM carries text."""
        async with FakeBackend(answer("a b"), style="vllm") as backend:
            choice = (await chunks(backend))[-1]["choices"][0]
        assert choice == {"index": 0, "delta": {"content": "b"}, "finish_reason": "stop", "stop_reason": None}

    async def test_openai_announces_the_usage_with_nulls(self) -> None:
        """Every chunk before the usage has `usage: null`, if it was asked for."""
        async with FakeBackend(answer("a")) as backend:
            assert [chunk["usage"] is None for chunk in await chunks(backend, WITH_USAGE)] == [True, True, True, False]
            assert not any("usage" in chunk for chunk in await chunks(backend))

    @pytest.mark.parametrize(
        ("style", "reasoning", "cached"),
        [
            ("openai", THOUGHT_OF_2, {"prompt_tokens_details": {"cached_tokens": 0}}),
            ("llama-server", {}, {"prompt_tokens_details": {"cached_tokens": 0}}),
            ("vllm", THOUGHT_OF_2, {}),
            ("sglang", {"reasoning_tokens": 2}, {"prompt_tokens_details": None}),
            ("ollama", {}, {}),
            ("kimi", THOUGHT_OF_2, {"cached_tokens": 0}),
            ("tokenspeed", {}, {}),
            ("unsloth", {}, {"prompt_tokens_details": {"cached_tokens": 0}}),
            ("lmstudio", THOUGHT_OF_2, {}),
            (
                "deepseek",
                THOUGHT_OF_2,
                {
                    "prompt_tokens_details": {"cached_tokens": 0},
                    "prompt_cache_hit_tokens": 0,
                    "prompt_cache_miss_tokens": 3,
                },
            ),
        ],
    )
    async def test_usage_details(self, style: str, reasoning: dict[str, Any], cached: dict[str, Any]) -> None:
        """The thought and the cache are counted in the engine's own place, or not at all."""
        counts = {"prompt_tokens": 3, "completion_tokens": 3, "total_tokens": 6}
        async with FakeBackend(answer("a", reasoning="b c"), style=style) as backend:
            assert (await post(backend)).json()["usage"] == counts | reasoning | cached

    @pytest.mark.parametrize(
        ("style", "thought", "calls"),
        [
            ("openai", "", None),
            ("llama-server", "", None),
            ("vllm", None, None),
            ("sglang", None, None),
            ("ollama", "", ""),
            ("kimi", "", ""),
            ("lmstudio", "", ""),
            ("openrouter", None, None),
        ],
    )
    async def test_content_without_text(self, style: str, thought: str | None, calls: str | None) -> None:
        """Beside a thought alone, and beside calls, content is null or empty."""
        replies = answer(reasoning="b", finish="length"), answer(calls=[LIST_DIR])
        async with FakeBackend(*replies, style=style) as backend:
            found = [(await post(backend)).json()["choices"][0]["message"]["content"] for _ in replies]
        assert found == [thought, calls]

    @pytest.mark.parametrize("style", STYLES)
    async def test_an_error_has_the_shape_of_the_engine(self, style: str) -> None:
        """The SDK raises its own exception with the scripted message."""
        shapes = {
            "llama-server": {"error": {"code": 400, "message": "no", "type": "invalid_request_error"}},
            "vllm": {"error": {"message": "no", "type": "invalid_request_error", "param": None, "code": 400}},
            "sglang": {"object": "error", "message": "no", "type": "invalid_request_error", "param": None, "code": 400},
            "kimi": {"error": {"type": "invalid_request_error", "message": "no"}},
            "tokenspeed": {"error": {"type": "Bad Request", "code": "bad_request", "message": "no", "param": None}},
            "openrouter": {"error": {"code": 400, "message": "no"}},
        }
        shapes["llama-router"] = shapes["llama-server"]
        shapes["deepseek"] = {"error": shapes["vllm"]["error"] | {"code": "invalid_request_error"}}
        plain = {"error": {"message": "no", "type": "invalid_request_error", "param": None, "code": None}}
        async with FakeBackend(error(400, "no"), style=style) as backend, sdk(backend) as client:
            assert (await post(backend)).json() == shapes.get(style, plain)
            with pytest.raises(openai.BadRequestError, match="no"):
                await client.chat.completions.create(**ASK)

    async def test_side_doors_tell_the_engine(self) -> None:
        """Health, models and the engine's own paths answer GET; every other path is a 404, or LM Studio's odd 200."""
        wanted: dict[str, set[str]] = {
            "llama-server": {"/v1/health", "/props", "/models"},
            "llama-router": {"/v1/health", "/props", "/models"},
            "vllm": {"/version"},
            "sglang": {"/", "/model_info", "/server_info", "/api/tags"},
            "tokenspeed": {"/readiness", "/liveness"},
            "unsloth": {"/props", "/version"},
            "ollama": {"/", "/api/version", "/api/tags", "/api/ps"},
            "lmstudio": {"/models", "/api/v0/models", "/api/v1/models"},
            "deepseek": {"/models"},
            "openrouter": {"/api/v1/models"},
        }
        own = set[str]().union(*wanted.values())
        servers = {"llama-server": "llama.cpp", "llama-router": "llama.cpp", "unsloth": "unsloth-studio"}
        healthless = {"ollama", "lmstudio", "unsloth", "deepseek", "openrouter"}
        for style in STYLES:
            async with FakeBackend(style=style, model="kimi-k3", context=4096) as backend:
                paths = [*own, "/health", "/v1/models", "/v1/models/kimi-k3", "/x"]
                got = await asked(backend, *paths)
                found = {path for path, answer in got.items() if answer.is_success and "Unexpected" not in answer.text}
                assert ("/health" in found) == (style not in healthless)
                assert found & own == wanted.get(style, set())
                assert got["/v1/models"].json()["data"][0] == got["/v1/models/kimi-k3"].json()
                assert got["/x"].status_code == (200 if style == "lmstudio" else 404)
                assert got["/x"].headers.get("server") == servers.get(style)
                assert (backend.requests, len(backend.others)) == ([], len(got))

    async def test_llama_server_shows_its_window_and_template(self) -> None:
        """`/props` has what tells a K3 template from others."""
        async with FakeBackend(style="llama-server", context=4096) as backend:
            props = (await asked(backend, "/props"))["/props"].json()
        assert props["default_generation_settings"]["n_ctx"] == 4096
        assert "thinking_effort" in props["chat_template"]

    async def test_a_router_tells_of_a_model_only_while_it_is_loaded(self) -> None:
        """`autoload=false` is a 400 for a model that sleeps or is not there; the router's own window is none."""
        async with FakeBackend(style="llama-router", model="kimi-k3", context=4096) as backend:
            models, own, *props = (
                await asked(
                    backend,
                    "/v1/models",
                    "/props",
                    *(f"/props?model={name}&autoload=false" for name in ("kimi-k3", "sleeper", "idler", "nobody")),
                )
            ).values()
        states = {row["id"]: (row["status"]["value"], "meta" in row) for row in models.json()["data"]}
        assert states == {"kimi-k3": ("loaded", True), "sleeper": ("sleeping", False), "idler": ("unloaded", False)}
        assert (own.json()["role"], own.json()["default_generation_settings"]["n_ctx"]) == ("router", 0)
        assert [answer.status_code for answer in props] == [200, 400, 400, 400]
        assert props[0].json()["default_generation_settings"]["n_ctx"] == 4096
        assert [answer.json()["error"]["message"] for answer in props[1:]] == [
            *["model is not loaded"] * 2,
            "model 'nobody' not found",
        ]

    async def test_ollama_tells_what_its_models_can(self) -> None:
        """In its list, and one by one on a POST: a running model, one of the cloud, one that does not think."""
        async with FakeBackend(style="ollama", model="kimi-k3", context=4096) as backend:
            got = await asked(backend, "/v1/models", "/api/tags", "/api/ps", "/api/show")
            async with httpx.AsyncClient(verify=TLS) as client:
                url = backend.url.removesuffix("/v1") + "/api/show"
                shown = [await client.post(url, json={"model": name}) for name in ("kimi-k3", "plain:latest", "nobody")]
        names = ["kimi-k3", "kimi-k3:cloud", "plain:latest"]
        tags = got["/api/tags"].json()["models"]
        assert [row["id"] for row in got["/v1/models"].json()["data"]] == [tag["name"] for tag in tags] == names
        assert ["thinking" in tag["capabilities"] for tag in tags] == [True, True, False]
        assert ["remote_host" in tag for tag in tags] == [False, True, False]
        assert [(row["name"], row["context_length"]) for row in got["/api/ps"].json()["models"]] == [("kimi-k3", 4096)]
        assert got["/api/show"].status_code == 404
        assert [answer.status_code for answer in shown] == [200, 200, 404]
        assert ["thinking" in answer.json()["capabilities"] for answer in shown[:2]] == [True, False]

    async def test_lm_studio_answers_any_path_with_success(self) -> None:
        """What it does not have is a 200 with an error as text; the window stands in the native list alone."""
        async with FakeBackend(style="lmstudio", model="kimi-k3", context=4096) as backend:
            got = await asked(backend, "/version", "/v1/models", "/api/v1/models")
        assert got["/version"].json() == {"error": "Unexpected endpoint or method. (GET /version)"}
        assert got["/v1/models"].json()["data"][0] == {
            "id": "kimi-k3",
            "object": "model",
            "owned_by": "organization_owner",
        }
        loaded, idle = got["/api/v1/models"].json()["models"]
        assert loaded["loaded_instances"][0]["config"]["context_length"] == 4096
        assert idle["loaded_instances"] == []

    async def test_unsloth_lists_what_is_not_loaded_too(self) -> None:
        """A flag tells them apart."""
        async with FakeBackend(style="unsloth", model="kimi-k3", context=4096) as backend:
            rows = (await asked(backend, "/v1/models"))["/v1/models"].json()["data"]
        assert [(row["loaded"], row["context_length"]) for row in rows] == [(True, 4096), (False, None)]

    async def test_smg_names_an_error_in_a_header(self) -> None:
        """The gateway's code stands in the body and in `X-SMG-Error-Code`; an answer has none."""
        async with FakeBackend(error(429, "no"), answer("x"), style="tokenspeed") as backend:
            refused, good = await post(backend), await post(backend)
            lost = (await asked(backend, "/x"))["/x"]
        assert refused.headers["x-smg-error-code"] == refused.json()["error"]["code"] == "too_many_requests"
        assert lost.headers["x-smg-error-code"] == "not_found"
        assert "x-smg-error-code" not in good.headers

    @pytest.mark.parametrize(
        ("style", "comment"), [("openrouter", ": OPENROUTER PROCESSING"), ("deepseek", ": keep-alive")]
    )
    async def test_services_keep_a_connection_alive(self, style: str, comment: str) -> None:
        """A stream begins with a comment, and a whole body with blanks."""
        async with FakeBackend(answer("a"), style=style) as backend:
            stream, whole = await post(backend, STREAM), await post(backend)
        assert stream.text.startswith(f"{comment}\n\ndata: ")
        assert whole.text[:1].isspace()
        assert whole.json()["choices"][0]["message"]["content"] == "a"

    async def test_openrouter_says_who_answers(self) -> None:
        """The provider on every chunk, its own word for the finish, and the usage beside a further choice."""
        async with FakeBackend(answer("a", reasoning="b"), style="openrouter") as backend:
            found = await chunks(backend, WITH_USAGE)
            message = (await post(backend)).json()["choices"][0]["message"]
        assert {chunk["provider"] for chunk in found} == {"Moonshot AI"}
        assert [chunk["choices"][0]["native_finish_reason"] for chunk in found] == [None, None, "stop", None]
        assert [bool(chunk.get("usage")) for chunk in found] == [False, False, False, True]
        assert (message["reasoning"], message["reasoning_details"][0]["text"]) == ("b", "b")


@pytest.mark.parametrize("style", ["vllm", "sglang"])
async def test_usage_may_be_on_every_chunk(style: str) -> None:
    """`continuous_usage_stats` counts as the answer goes, up to what the last chunk says; only with the usage."""
    options = {"include_usage": True, "continuous_usage_stats": True}
    async with FakeBackend(answer("a b", reasoning="c d e"), style=style) as backend:
        found = await chunks(backend, STREAM | {"stream_options": options})
        plain = await chunks(backend, STREAM | {"stream_options": options | {"include_usage": False}})
    counts = [chunk["usage"]["completion_tokens"] for chunk in found]
    assert counts == sorted(counts)
    assert {*counts} == {*range(6)}
    assert [chunk["usage"]["prompt_tokens"] for chunk in found] == [3] * len(found)
    assert not any("usage" in chunk for chunk in plain)


class TestControl:
    """llama-server ends a thought that runs, as b11549 does it."""

    CONTROLLED = WITH_USAGE | {"reasoning_control": True, "timings_per_token": True}

    async def told(self, backend: FakeBackend, body: dict[str, Any]) -> tuple[int, Any]:
        """What the control answers."""
        async with httpx.AsyncClient(timeout=5, verify=TLS) as client:
            answer = await client.post(f"{backend.url}/chat/completions/control", json=body)
        return answer.status_code, answer.json()

    @pytest.mark.parametrize(("after", "left"), [(0, ""), (1, "one "), (3, "one two three ")])
    async def test_the_text_follows_on_the_thought_that_is_ended(self, after: int, left: str) -> None:
        """At once, but for the part that is due; usage and timings count what came, and the control is no chat."""
        go, script = asyncio.Event(), answer("So it is.", reasoning="one two three four five")
        async with FakeBackend(script.hold(go, after=after), style="llama-server") as backend:
            running = asyncio.create_task(chunks(backend, self.CONTROLLED))
            await (await backend.request_arrived()).written(after)
            done = await self.told(backend, {"id": "chatcmpl-0", "action": "reasoning_end"})
            go.set()
            *found, end, usage = await running
        assert done == (200, {"success": True})
        deltas = [chunk["choices"][0]["delta"] for chunk in found]
        assert "".join(delta.get("reasoning_content") or "" for delta in deltas) == left
        assert "".join(delta.get("content") or "" for delta in deltas) == "So it is."
        assert (end["choices"][0]["finish_reason"], end["choices"][0]["delta"]) == ("stop", {})
        assert usage["usage"]["completion_tokens"] == usage["timings"]["predicted_n"] == len(deltas) - 1
        assert [chunk["timings"]["predicted_n"] for chunk in found] == [*range(len(deltas))]
        assert (len(backend.requests), len(backend.others)) == (1, 1)

    async def test_a_thought_that_nobody_may_end_goes_on(self) -> None:
        """Without `reasoning_control`, with an id of another, after the end, and for an answer in one piece."""
        go, script = asyncio.Event(), answer("So.", reasoning="one two")
        over = {"success": False, "message": "no active completion for this id"}
        async with FakeBackend(script.hold(go), script, script.after(go), style="llama-server") as backend:
            running = asyncio.create_task(chunks(backend))
            await backend.request_arrived()
            asked = [{"id": id, "action": "reasoning_end"} for id in ("chatcmpl-0", "chatcmpl-9")]
            first, unknown = [await self.told(backend, body) for body in asked]
            assert first == (200, {"success": False, "message": "reasoning control not enabled for this completion"})
            assert unknown == (200, over)
            assert await chunks(backend, self.CONTROLLED)
            assert await self.told(backend, {"id": "chatcmpl-1", "action": "reasoning_end"}) == (200, over)
            whole = asyncio.create_task(post(backend, ASK | {"reasoning_control": True}))
            await backend.request_arrived()
            assert (await backend.request_arrived()).number == 2
            assert await self.told(backend, {"id": "chatcmpl-2", "action": "reasoning_end"}) == (200, over)
            go.set()
            thought = "".join(chunk["choices"][0]["delta"].get("reasoning_content") or "" for chunk in await running)
            assert (await whole).is_success
        assert thought == "one two"

    async def test_what_it_does_not_understand_is_a_400(self) -> None:
        """An unknown action, and no id; another style does not know the path at all."""
        async with FakeBackend(style="llama-server") as backend:
            unknown, nameless = [
                await self.told(backend, body) for body in ({"id": "x", "action": "y"}, {"action": "reasoning_end"})
            ]
        assert (unknown[0], unknown[1]["error"]["message"]) == (400, "unknown control action")
        assert (nameless[0], nameless[1]["error"]["message"]) == (400, "missing completion id")
        async with FakeBackend(style="vllm") as backend:
            assert (await self.told(backend, {"id": "x", "action": "reasoning_end"}))[0] == 404
