"""Turn memory through the public door: what reaches the backend, and what the client and the ledger are told."""

from __future__ import annotations

import json

import pytest
from chats import LONG, asks, result, says
from running import events, serving, settings

from proxy.history import FILLER
from proxy.testing import FakeBackend, ToolCall, answer, error, raw

LS = says("", ("functions.ls:0", "ls", {"path": "/"}))
CALLS = [ToolCall("ls", '{"path":"/"}', "functions.ls:0")]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
async def test_the_echo_of_a_filler_reaches_neither_client_nor_store(stream, field):
    """The filler goes to the backend alone, and the flag in the ledger tells that the model repeated it."""
    echo = answer("Two.", reasoning=f"{FILLER}\nI look.", field=field, split=7)
    async with FakeBackend(echo) as backend, serving(settings(backend.url)) as proxy:
        told = await proxy.chat(asks("go"), LS, result("functions.ls:0"), stream=stream)
        assert backend.requests[-1].body["messages"][1]["reasoning_content"] == FILLER
        assert "filler" in told.headers["x-proxy-decisions"]
        assert told.headers["x-proxy-history"] == "present=0; restored=0; missing=0; filled=1; dropped=0"
        assert "not kept" not in told.text
        row = (await proxy.rows())[0]
        assert (row["turns_filled"], row["turns_missing"], row["flags"]) == (1, 0, ["filler_echo"])
        await proxy.chat(asks("go"), LS, result("functions.ls:0"), says("Two."), asks("and?"), stream=stream)
        assert backend.requests[-1].body["messages"][3]["reasoning_content"] == "I look."


async def test_a_thought_that_is_nothing_but_the_filler_is_no_thought():
    """The turn is kept as one that did not think."""
    async with FakeBackend(answer("Two.", reasoning=FILLER)) as backend, serving(settings(backend.url)) as proxy:
        told = await proxy.chat(asks("go"), LS, result("functions.ls:0"))
        assert "reasoning_content" not in told.json()["choices"][0]["message"]
        again = await proxy.chat(asks("go"), LS, result("functions.ls:0"), says("Two."), asks("and?"))
        assert "reasoning_content" not in backend.requests[-1].body["messages"][3]
        assert "missing=0" in again.headers["x-proxy-history"]


async def test_lost_calls_go_upstream_again():
    """Text and results were kept; the calls that they belong to stand between them."""
    reply = answer("I look.", reasoning="R", calls=CALLS)
    async with FakeBackend(reply) as backend, serving(settings(backend.url)) as proxy:
        first = (await proxy.chat(asks("go"))).json()["choices"][0]["message"]
        told = await proxy.chat(asks("go"), says("I look."), result("functions.ls:0"))
        sent = backend.requests[-1].body["messages"][1]
        assert sent == {**says("I look."), "tool_calls": first["tool_calls"], "reasoning_content": "R"}
        assert told.headers["x-proxy-decisions"] == "restore,restore_calls"


@pytest.mark.parametrize("stream", [False, True])
async def test_reasoning_details_are_replayed_word_for_word(stream):
    """OpenRouter: pieces of a stream are joined, signatures and encrypted entries included."""
    whole = [
        {"type": "reasoning.text", "text": "I look.", "index": 0, "format": "f", "signature": "s=="},
        {"type": "reasoning.encrypted", "data": "xyz", "index": 1},
    ]
    parts = [
        {"reasoning": "I ", "reasoning_details": [{"type": "reasoning.text", "text": "I ", "index": 0, "format": "f"}]},
        {"reasoning": "look.", "reasoning_details": [{"type": "reasoning.text", "text": "look.", "index": 0}]},
        {"reasoning_details": [{"type": "reasoning.text", "signature": "s==", "index": 0}]},
        {"reasoning_details": [{"type": "reasoning.encrypted", "data": "xyz", "index": 1}]},
        {"content": "Two."},
    ]
    chunks = [{"choices": [{"index": 0, "delta": part}]} for part in parts]
    chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    lines = b"".join(b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks) + b"data: [DONE]\n\n"
    message = {"role": "assistant", "content": "Two.", "reasoning": "I look.", "reasoning_details": whole}
    body = json.dumps({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}).encode()
    kind = {"content-type": "text/event-stream" if stream else "application/json"}
    reply = raw(lines if stream else body, headers=kind)
    async with FakeBackend(reply) as backend, serving(settings(backend.url, engine="openrouter")) as proxy:
        await proxy.chat(asks("go"), stream=stream)
        await proxy.chat(asks("go"), says("Two."), asks("and?"), stream=stream)
        sent = backend.requests[-1].body["messages"][1]
        assert (sent["reasoning"], sent["reasoning_details"]) == ("I look.", whole)


WINDOW = '{"error":{"code":400,"message":"request (6158 tokens) exceeds the available context size (1024 tokens)"}}'


@pytest.mark.parametrize("stream", [False, True])
async def test_a_prompt_that_only_restored_thoughts_make_too_long_goes_again_without_them(stream):
    """Nothing was generated yet, and the client knows its own messages to fit."""
    replies = [answer("Two.", reasoning="R"), error(400, WINDOW), answer("Fine.")]
    async with FakeBackend(*replies) as backend, serving(settings(backend.url)) as proxy:
        await proxy.chat(asks("go"))
        told = await proxy.chat(asks("go"), says("Two."), asks("and?"), stream=stream)
        assert (told.status_code, len(backend.requests)) == (200, 3)
        assert "Fine." in told.text
        assert backend.requests[1].body["messages"][1]["reasoning_content"] == "R"
        assert backend.requests[2].body["messages"][1] == says("Two.")
        assert told.headers["x-proxy-history"] == "present=0; restored=0; missing=0; filled=0; dropped=1"
        row = (await proxy.rows(2))[1]
        assert (row["turns_dropped"], row["attempts"], row["outcome"]) == (1, 2, "ok")
        assert "window" in row["decisions"]


async def test_a_window_that_proved_shorter_than_estimated_is_not_tried_again():
    """Once was enough to learn how dense this text is."""
    thought = "t " * 1500
    replies = [answer("Two.", reasoning=thought), error(400, WINDOW), answer("Fine."), answer("Good.")]
    async with FakeBackend(*replies) as backend:
        small = {"url": backend.url, "engine": "kimi", "family": "kimi-k3", "models": ["m"], "context_limit": 3000}
        given = settings(backend.url, backends={"local": small}, policy={"min_completion_tokens": 0})
        async with serving(given) as proxy:
            await proxy.chat(asks("go"))
            first = await proxy.chat(asks("go"), says("Two."), asks("and?"))
            again = await proxy.chat(asks("go"), says("Two."), asks("and?"), says("Fine."), asks("so?"))
            assert [told.headers["x-proxy-decisions"] for told in (first, again)] == ["window", "window"]
            assert (first.status_code, again.status_code, len(backend.requests)) == (200, 200, 4)


async def test_a_prompt_that_is_too_long_by_itself_is_told_in_the_word_that_clients_know():
    """The backend's words stay; agents shorten their history when they read the code."""
    async with FakeBackend(error(400, WINDOW)) as backend, serving(settings(backend.url)) as proxy:
        told = await proxy.chat(asks("go"))
        assert (told.status_code, told.json()["error"]["code"]) == (400, "context_length_exceeded")
        assert "exceeds the available context size" in told.json()["error"]["message"]
        assert len(backend.requests) == 1


async def test_a_prompt_that_cannot_fit_is_refused_before_it_is_sent():
    """Ollama would cut it without a word."""
    async with FakeBackend() as backend:
        small = {"url": backend.url, "engine": "ollama", "models": ["m"], "context_limit": 1000}
        async with serving(settings(backend.url, backends={"local": small})) as proxy:
            told = await proxy.chat(asks("word " * 2000))
            assert (told.status_code, told.headers["x-proxy-error"]) == (400, "context_length_exceeded")
            assert told.json()["error"]["param"] == "messages"
            row = (await proxy.rows())[0]
            assert (row["outcome"], row["status"], backend.requests) == ("rejected", 400, [])


async def test_restored_thoughts_are_left_out_where_the_window_is_short():
    """The old ones; the header and the ledger say so."""
    thought = "t " * 4000
    async with FakeBackend(answer("Two.", reasoning=thought)) as backend:
        small = {"url": backend.url, "engine": "kimi", "family": "kimi-k3", "models": ["m"], "context_limit": 4000}
        async with serving(settings(backend.url, backends={"local": small})) as proxy:
            await proxy.chat(asks("go"))
            told = await proxy.chat(asks("go"), says("Two."), asks("and?"))
            assert backend.requests[-1].body["messages"][1] == says("Two.")
            assert told.headers["x-proxy-history"] == "present=0; restored=0; missing=0; filled=0; dropped=1"
            assert "window" in told.headers["x-proxy-decisions"]


async def test_the_density_of_prompts_is_learned_from_what_backends_report():
    """A language that needs few tokens leaves more room for thoughts."""
    thought = "t " * 4000
    usage = {"prompt_tokens": 2000, "completion_tokens": 10, "total_tokens": 2010}
    async with FakeBackend(answer("Two.", reasoning=thought, usage=usage)) as backend:
        small = {"url": backend.url, "engine": "kimi", "family": "kimi-k3", "models": ["m"], "context_limit": 6000}
        async with serving(settings(backend.url, backends={"local": small})) as proxy:
            await proxy.chat(asks("go"))
            first = await proxy.chat(asks("go"), says("Two."), asks("and?"))
            assert "dropped=1" in first.headers["x-proxy-history"]
            for _ in range(3):
                await proxy.chat(asks("w " * 6000))
            later = await proxy.chat(asks("go"), says("Two."), asks("and?"))
            assert "restored=1" in later.headers["x-proxy-history"]


async def test_a_text_keeps_the_bytes_it_was_first_sent_with():
    """A client that trims in one request and not in the next does not change the beginning of the prompt."""
    async with FakeBackend(answer("One done. ", reasoning="R")) as backend, serving(settings(backend.url)) as proxy:
        await proxy.chat(asks("go"))
        await proxy.chat(asks("go"), says("One done."), asks("and?"))
        await proxy.chat(asks("go"), says("One done. "), asks("and?"), says("One done."), asks("?"))
        second, third = (request.raw for request in backend.requests[1:])
        start = second.index(b'"messages":[') + len(b'"messages":[')
        assert third[start:].startswith(second[start : second.index(b"]", start)])


@pytest.mark.parametrize("content", [5, 5.5, True, {"a": 1}, [[1]], [None]])
async def test_a_content_that_is_none_is_the_backends_to_refuse(content):
    """It goes on as it came, and is no reason to fail."""
    async with FakeBackend() as backend, serving(settings(backend.url)) as proxy:
        message = {"role": "assistant", "content": content}
        told = await proxy.chat(asks("go"), message, asks("and?"))
        assert (told.status_code, backend.requests[-1].body["messages"][1]) == (200, message)


@pytest.mark.parametrize("text", ["<think>example</think> is how it is written.", "<think>a</think>"])
async def test_an_answer_that_begins_with_mark_up_keeps_its_text_and_its_thought(text):
    """The thought is the one that the model wrote, not the example."""
    async with FakeBackend(answer(text, reasoning="REAL")) as backend, serving(settings(backend.url)) as proxy:
        shown = (await proxy.chat(asks("go"))).json()["choices"][0]["message"]
        assert shown["content"] == text
        await proxy.chat(asks("go"), says(text), asks("and?"))
        assert backend.requests[-1].body["messages"][1] == says(text, reasoning_content="REAL")


@pytest.mark.parametrize("reasoning", ["REAL", ""])
async def test_a_block_of_a_front_end_that_a_model_writes_is_text(reasoning):
    """Models do not fold their thoughts into `<details>`."""
    text = '<details type="reasoning"><summary>S</summary>\n> ex\n</details>\nSo.'
    async with FakeBackend(answer(text, reasoning=reasoning)) as backend, serving(settings(backend.url)) as proxy:
        await proxy.chat(asks("go"))
        await proxy.chat(asks("go"), says(text), asks("and?"))
        own = {"reasoning_content": reasoning} if reasoning else {}
        assert backend.requests[-1].body["messages"][1] == says(text, **own)


async def test_details_that_nobody_can_read_go_back_too():
    """Encrypted reasoning of a tool turn, without a word in clear text."""
    details = [{"type": "reasoning.encrypted", "data": "xyz"}]
    message = {"role": "assistant", "content": "Two.", "reasoning": None, "reasoning_details": details}
    body = json.dumps({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}).encode()
    reply = raw(body, headers={"content-type": "application/json"})
    async with FakeBackend(reply) as backend, serving(settings(backend.url, engine="openrouter")) as proxy:
        await proxy.chat(asks("go"))
        told = await proxy.chat(asks("go"), says("Two."), asks("and?"))
        assert backend.requests[-1].body["messages"][1] == says("Two.", reasoning_details=details)
        assert "restored=1" in told.headers["x-proxy-history"]


async def test_what_is_left_of_a_stopped_answer_goes_as_an_empty_text():
    """Neither text nor calls: strict engines want one of them."""
    async with FakeBackend() as backend, serving(settings(backend.url)) as proxy:
        for left in ({"role": "assistant", "content": None}, {"role": "assistant"}):
            told = await proxy.chat(asks("go"), left, asks("and?"))
            assert backend.requests[-1].body["messages"][1] == says("")
            assert "missing=1" in told.headers["x-proxy-history"]


async def test_a_thought_in_the_text_is_told_apart_and_goes_back():
    """An engine without a parser: the client sees a thought, and the backend gets it back as one."""
    reply = answer("<think>I look.</think>\n\nTwo.", split=3)
    async with (
        FakeBackend(reply) as backend,
        serving(settings(backend.url, engine="openai", family="generic")) as proxy,
    ):
        told = await proxy.chat(asks("go"), stream=True)
        chunks = [json.loads(event) for event in events(told.text) if event != "[DONE]"]
        deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
        assert "".join(delta.get("reasoning_content") or "" for delta in deltas) == "I look."
        assert "".join(delta.get("content") or "" for delta in deltas) == "Two."
        await proxy.chat(asks("go"), says("Two."), asks("and?"))
        assert backend.requests[-1].body["messages"][1] == says("Two.", reasoning_content="I look.")


async def test_a_trimmed_history_keeps_the_thoughts_that_are_certain():
    """A long text and a call without their places, under a summary."""
    async with FakeBackend(answer(LONG, reasoning="R1"), answer(reasoning="R2", calls=CALLS), answer("x")) as backend:
        async with serving(settings(backend.url)) as proxy:
            begin = (asks("Hello."), says("Hi."), asks("one"))
            await proxy.chat(*begin)
            await proxy.chat(*begin, says(LONG), asks("two"))
            told = await proxy.chat(asks("summary"), says(LONG), asks("two"), LS, result("functions.ls:0"))
            sent = backend.requests[-1].body["messages"]
            assert [sent[at].get("reasoning_content") for at in (1, 3)] == ["R1", "R2"]
            assert "restored=2; missing=0" in told.headers["x-proxy-history"]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_is_shown_tags_sends_them_back_and_the_stored_thought_goes(stream):
    """`think_tags` is for front ends that keep a thought only inside the text; upstream it stands in its own field."""
    reply = answer("Two files.", reasoning=" Two\n\nnames.\n")
    async with FakeBackend(reply) as backend:
        given = settings(backend.url, defaults={"client_reasoning": "think_tags"})
        async with serving(given) as proxy:
            response = await proxy.chat({"role": "user", "content": "hi"}, stream=stream)
            if stream:
                deltas = [json.loads(line)["choices"][0]["delta"] for line in events(response.text)[:-1]]
                text = "".join(delta.get("content") or "" for delta in deltas)
            else:
                text = response.json()["choices"][0]["message"]["content"]
            assert text == "<think>\n Two\n\nnames.\n\n</think>\n\nTwo files."
            said = {"role": "assistant", "content": text}
            more = await proxy.chat({"role": "user", "content": "hi"}, said, {"role": "user", "content": "more"})
            message = backend.requests[-1].body["messages"][1]
            assert message == {"role": "assistant", "content": "Two files.", "reasoning_content": " Two\n\nnames.\n"}
            assert more.headers["x-proxy-decisions"] == "lift"
