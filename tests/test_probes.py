"""What stands behind a URL is found by its own answers, and no question loads or wakes a model."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from running import Running, serving, settings

from proxy import probes
from proxy.dialects import DIALECTS, About
from proxy.probes import look
from proxy.testing import STYLES, FakeBackend, Reply, Request, answer, document, error, raw

ROOT = "http://box:8080"
URL = f"{ROOT}/v1"
USER = {"role": "user", "content": "hi"}
SAID = {"role": "assistant", "content": "Two files."}
MORE = {"role": "user", "content": "more"}
THOUGHT = answer("Two files.", reasoning="Two names came.")
K3 = "{%- set effort = thinking_effort if thinking_effort is defined else 'max' -%}"
DOORS = ["/version", "/model_info", "/readiness", "/api/version", "/api/v1/models"]
LOST = object()
"""A path that does not answer."""


class Server:
    """Answers in an engine's manner, without a socket, and keeps what was asked. `over` replaces answers by path."""

    def __init__(self, style: str = "openai", over: Mapping[str, Any] | None = None, root: str = ROOT) -> None:
        self.style, self.root = STYLES[style], root
        self.doors: dict[str, Any] = {**self.style.doors("kimi-k3", 9000), **(over or {})}
        self.headers = self.style.headers
        self.asked: list[tuple[str, Any]] = []

    async def __call__(self, url: str, body: Mapping[str, Any] | None) -> tuple[dict[str, str], Any] | None:
        """What `Backend._ask` makes of the answer."""
        assert url.startswith(self.root)
        target = url.removeprefix(self.root)
        self.asked.append((target, body))
        path, _, query = target.partition("?")
        request = Request("POST" if body else "GET", path, query, {}, json.dumps(body).encode() if body else b"")
        door = self.doors.get(path, self.style.unknown)
        if door is LOST:
            return None
        found, status = door(request) if callable(door) else (door, 200)
        if status != 200 or (isinstance(found, str) and found):  # an error, or no JSON
            return None
        return self.headers, found or None

    @property
    def paths(self) -> list[str]:
        """What was asked, in order."""
        return [path for path, _ in self.asked]


def rows(*ids: str, **more: Any) -> dict[str, Any]:
    """A list of models."""
    return {"object": "list", "data": [{"id": id, "object": "model", **more} for id in ids]}


# by their own answers

FOUND: dict[str, tuple[str, str, dict[str, About]]] = {
    "openai": ("openai", "", {"kimi-k3": About()}),
    "llama-server": ("llama-server", "b11434-fake", {"kimi-k3": About(9000, K3, loaded=True, slots=1)}),
    "llama-router": (
        "llama-server",
        "b11434-fake",
        {
            "kimi-k3": About(9000, K3, loaded=True, slots=1),
            "sleeper": About(loaded=False),
            "idler": About(loaded=False),
        },
    ),
    "vllm": ("vllm", "0.32.0", {"kimi-k3": About(9000)}),
    "sglang": ("sglang", "0.5.23", {"kimi-k3": About(9000)}),
    "tokenspeed": ("tokenspeed", "", {"kimi-k3": About()}),
    "unsloth": ("unsloth", "", {"kimi-k3": About(9000, loaded=True), "plain-7b:Q4_K_M": About(loaded=False)}),
    "ollama": (
        "ollama",
        "0.33.0",
        {
            "kimi-k3": About(9000, thinks=True, loaded=True),
            "kimi-k3:cloud": About(1 << 20, thinks=True, loaded=True),
            "plain:latest": About(thinks=False, loaded=False),
        },
    ),
    "lmstudio": (
        "lmstudio",
        "",
        {"kimi-k3": About(9000, efforts=("low", "medium", "high"), loaded=True), "plain-7b": About(loaded=False)},
    ),
    "kimi": ("kimi", "", {"kimi-k3": About(9000, efforts=("low", "high", "max"))}),
}
ASKED: dict[str, list[str]] = {
    "openai": DOORS,
    "llama-server": ["/props"],
    "llama-router": ["/props?model=kimi-k3&autoload=false"],
    "vllm": ["/version"],
    "sglang": ["/server_info", "/model_info"],
    "tokenspeed": ["/readiness"],
    "unsloth": [],
    "ollama": ["/api/version", "/api/tags", "/api/ps"],
    "lmstudio": ["/api/v1/models"],
    "kimi": [],
}


@pytest.mark.parametrize("style", FOUND)
async def test_an_engine_is_found_by_its_own_answers(style):
    """Its name and version, and of each model the window, template and efforts, whether it thinks and is there."""
    found = await look(Server(style), URL, "auto")
    assert found is not None
    assert (found.engine, found.version, dict(found.about)) == FOUND[style]


@pytest.mark.parametrize("style", FOUND)
async def test_only_these_paths_are_asked_and_all_of_them_with_get(style):
    """No question to an engine that names itself loads, wakes or generates anything; sleepers are not asked about."""
    server = Server(style)
    await look(server, URL, "auto")
    assert sorted(server.asked) == sorted((path, None) for path in ["/v1/models", *ASKED[style]])


async def test_a_server_that_says_nothing_of_itself_is_asked_at_each_door_once():
    """Then it is any other one."""
    server = Server(over={"/v1/models": rows("m", owned_by="somebody")})
    found = await look(server, URL, "auto")
    assert found is not None
    assert (found.engine, found.models[0]["id"]) == ("openai", "m")
    assert server.asked == [(path, None) for path in ["/v1/models", *DOORS]]


@pytest.mark.parametrize(
    ("style", "engine"),
    [
        ("vllm", "vllm"),
        ("sglang", "sglang"),
        ("tokenspeed", "tokenspeed"),
        ("ollama", "ollama"),
        ("lmstudio", "lmstudio"),
    ],
)
async def test_a_door_tells_an_engine_whose_list_does_not(style, engine):
    """A list of models without owners, or without models, is no obstacle."""
    for listed in (rows("m"), rows("m", owned_by="somebody"), rows()):
        found = await look(Server(style, {"/v1/models": listed}), URL, "auto")
        assert found is not None
        assert found.engine == engine


@pytest.mark.parametrize("style", ["llama-server", "unsloth"])
async def test_a_header_or_an_owner_is_enough(style):
    """A reverse proxy may put its own name into the header; a list may have no owner."""
    hidden = Server(style)
    hidden.headers = {"server": "nginx"}
    for server in (hidden, Server(style, {"/v1/models": rows("m")})):
        found = await look(server, URL, "auto")
        assert found is not None
        assert found.engine == style


@pytest.mark.parametrize(
    ("url", "engine"),
    [
        ("https://api.moonshot.ai/v1", "kimi"),
        ("https://api.moonshot.cn/v1", "kimi"),
        ("https://api.kimi.com/coding/v1", "kimi"),
        ("https://api.deepseek.com/v1", "deepseek"),
        ("https://api.deepseek.com", "deepseek"),
        ("https://openrouter.ai/api/v1", "openrouter"),
        ("https://api.openai.com/v1", None),
        ("http://127.0.0.1:8080/v1", None),
        ("http://box/api.deepseek.com/v1", None),
    ],
)
async def test_a_service_is_known_by_its_host(url, engine):
    """The name alone decides, and only that of the host; also where it answers nothing without a key."""
    assert probes.hosted(url) == engine
    root = url.removesuffix("/v1")
    silent = Server(over={"/models": LOST, "/v1/models": LOST}, root=root)
    found = await look(silent, url, "auto")
    assert (found.engine if found else None) == engine
    assert silent.paths[1:] == ([] if engine else DOORS)


@pytest.mark.parametrize(
    "url", ["http://deepseek.company.lan:8000/v1", "http://moonshot.lan/v1", "https://openrouter.ai.example.org/v1"]
)
async def test_a_host_that_only_sounds_like_a_service_is_none(url):
    """People name their own machines after the models that they run."""
    found = await look(Server("vllm", root=url.removesuffix("/v1")), url, "auto")
    assert found is not None
    assert found.engine == "vllm"


async def test_hosted_services_tell_their_windows():
    """OpenRouter's list has no owners, DeepSeek's no windows."""
    for url, engine, limit in (
        ("https://openrouter.ai/api/v1", "openrouter", 9000),
        ("https://api.deepseek.com/v1", "deepseek", None),
    ):
        server = Server(engine, root=url.removesuffix("/v1"))
        found = await look(server, url, "auto")
        assert found is not None
        assert (found.engine, found.of("kimi-k3").context_limit) == (engine, limit)
        assert server.paths == ["/v1/models"]


@pytest.mark.parametrize("engine", DIALECTS)
async def test_a_configured_engine_is_believed(engine):
    """Whatever the server says of itself, and without a question at the doors of others."""
    server = Server("vllm")
    found = await look(server, URL, engine)
    assert found is not None
    assert found.engine == engine
    assert not {each.door[0] for each in DIALECTS.values() if each.door and each.name != engine} & (
        set(server.paths) - {"/v1/models", *ASKED.get(engine, ())}
    )


# what is taken for something else


async def test_sglang_is_not_ollama_though_it_answers_ollamas_paths():
    """With its own owner, and without any."""
    ollama = {"/": "Ollama is running", "/api/version": {"version": "0.33.0"}, "/api/ps": {"models": []}}
    for more in ({}, {"/v1/models": rows("m")}, {"/v1/models": rows("m", owned_by="somebody")}):
        server = Server("sglang", {**ollama, **more})
        found = await look(server, URL, "auto")
        assert found is not None
        assert (found.engine, found.version) == ("sglang", "0.5.23")
        assert not [path for path in server.paths if path.startswith("/api/")]


async def test_llama_server_is_not_ollama_though_its_list_is_ollamas_too():
    """Its list of models has both shapes."""
    server = Server("llama-server")
    assert server.doors["/v1/models"]["models"][0]["name"] == "kimi-k3"
    found = await look(server, URL, "auto")
    assert found is not None
    assert found.engine == "llama-server"


@pytest.mark.parametrize("listed", [rows(), rows("m", owned_by="organization_owner"), rows("m")])
async def test_lm_studios_success_for_every_path_is_taken_for_nothing_else(listed):
    """It answers `/version` and all the other doors with 200; only its own has what it should have."""
    found = await look(Server("lmstudio", {"/v1/models": listed}), URL, "auto")
    assert found is not None
    assert (found.engine, found.version) == ("lmstudio", "")


async def test_an_older_lm_studio_is_found_without_its_native_list():
    """Then nothing but the names is known: the answer is a success with an error inside."""
    server = Server("lmstudio")
    del server.doors["/api/v1/models"]
    found = await look(server, URL, "auto")
    assert found is not None
    assert (found.engine, dict(found.about)) == ("lmstudio", {"kimi-k3": About(), "plain-7b": About()})


async def test_ollama_with_the_models_of_others_is_found():
    """The owner is the namespace of a name: an author's, or an organisation's of the hub."""
    for owners in (["somebody"], ["somebody", "library"]):
        data = [{"id": f"{owner}/m", "object": "model", "owned_by": owner} for owner in owners]
        found = await look(Server("ollama", {"/v1/models": {"data": data}}), URL, "auto")
        assert found is not None
        assert found.engine == "ollama"


@pytest.mark.parametrize("owner", ["vllm", "sglang", "openai", "system"])
async def test_ollama_with_models_of_another_engines_maker_is_found(owner):
    """`hf.co/openai/gpt-oss-20b` is owned by `openai` there."""
    found = await look(Server("ollama", {"/v1/models": rows(f"hf.co/{owner}/m", owned_by=owner)}), URL, "auto")
    assert found is not None
    assert found.engine == "ollama"


@pytest.mark.parametrize("listed", [LOST, [], "", {"data": None}, {"data": [1, {"id": 2}, {}]}, {"error": "no"}, 7])
async def test_a_list_that_cannot_be_read_has_no_models(listed):
    """Doors still tell the engine: vLLM wants a key for its list and none for its version."""
    found = await look(Server("vllm", {"/v1/models": listed}), URL, "auto")
    assert found is not None
    assert (found.engine, found.version, found.models, dict(found.about)) == ("vllm", "0.32.0", (), {})


@pytest.mark.parametrize("engine", ["auto", "openai", "vllm", "kimi", "ollama", "llama-server", "lmstudio"])
async def test_a_server_that_answers_nothing_teaches_nothing(engine):
    """A 401, a page of HTML and silence are all the same to a probe."""
    server = Server(over={"/v1/models": LOST})
    assert await look(server, URL, engine) is None


NAMES = ["models", "data", "id", "name", "key", "capabilities", "context_length", "status", "value", "think_efforts"]
NAMES += ["valid_efforts", "version", "meta", "default_generation_settings", "n_ctx", "chat_template", "details"]
NAMES += ["model_info", "loaded"]
JSONS: st.SearchStrategy[Any] = st.recursive(
    st.sampled_from([None, True, 7, -1, 0.5, "", "x", "loaded", "low", "thinking", "m"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.parametrize("engine", [*DIALECTS, "auto"])
@hypothesis_settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_json_is_taken_without_a_fault(engine, data):
    """Whatever a server writes into its answers, a look ends, and what it tells has the right types."""
    row = data.draw(st.dictionaries(st.sampled_from(["owned_by", "loaded", "status", "meta"]), JSONS, max_size=3))
    doors = {path: data.draw(JSONS) for path in ["/props", "/server_info", "/api/tags", "/api/ps", *DOORS]}
    if data.draw(st.booleans()):
        doors["/api/v1/models"] = {"models": [{"key": "m", "loaded_instances": data.draw(JSONS)}]}
    found = asyncio.run(look(Server(over={**doors, "/v1/models": {"data": [{"id": "m", **row}]}}), URL, engine))
    for told in found.about.values() if found else ():
        assert told.context_limit is None or told.context_limit > 0
        assert all(isinstance(word, str) for word in told.efforts)
        assert {type(told.thinks), type(told.loaded)} <= {bool, type(None)}
        assert isinstance(told.template, str | None)


@pytest.mark.parametrize(
    ("native", "loaded"),
    [
        ({"models": 7}, None),
        ({"models": [{"key": "kimi-k3", "loaded_instances": 7}]}, False),
        ({"models": [{"key": "kimi-k3", "capabilities": {"reasoning": {"allowed_options": [{}]}}}]}, False),
    ],
)
async def test_a_native_list_of_lm_studio_that_cannot_be_read_is_none(native, loaded):
    """The engine is known all the same."""
    found = await look(Server("lmstudio", {"/api/v1/models": native}), URL, "lmstudio")
    assert found is not None
    assert found.of("kimi-k3") == About(loaded=loaded)


# what is asked of each model


async def test_an_older_ollama_is_asked_for_each_model_what_it_can():
    """Its list has no capabilities; `/api/show` reads a file's head. Nothing else is ever posted."""
    server = Server("ollama")
    tags = [{"name": tag["name"], "model": tag["model"]} for tag in server.doors["/api/tags"]["models"]]
    server.doors["/api/tags"] = {"models": tags}
    found = await look(server, URL, "auto")
    assert found is not None
    posted = [(path, body) for path, body in server.asked if body is not None]
    assert posted == [("/api/show", {"model": name}) for name in ("kimi-k3", "kimi-k3:cloud", "plain:latest")]
    assert {name: told.thinks for name, told in found.about.items()} == {
        "kimi-k3": True,
        "kimi-k3:cloud": True,
        "plain:latest": False,
    }
    assert found.of("kimi-k3:cloud").context_limit == 1 << 20


async def test_an_ollama_that_does_not_list_its_models_is_not_asked_about_them():
    """Without the native list nobody knows whether it has them; nothing is known of what they can."""
    server = Server("ollama", {"/api/tags": LOST})
    found = await look(server, URL, "auto")
    assert found is not None
    assert "/api/show" not in server.paths
    assert found.of("kimi-k3").thinks is None


async def test_the_window_of_an_idle_ollama_model_is_not_known():
    """What its file says is not what the server will give it."""
    found = await look(Server("ollama", {"/api/ps": {"models": []}}), URL, "auto")
    assert found is not None
    assert (found.of("kimi-k3").context_limit, found.of("kimi-k3").loaded) == (None, False)
    assert found.of("kimi-k3:cloud").context_limit == 1 << 20


async def test_a_server_of_many_models_is_not_asked_for_each():
    """A look has an end: at most 64 questions beside the list, and few that stay without an answer: each may wait."""
    names = [f"m{number}" for number in range(300)]
    ollama = {"/v1/models": rows(*names, owned_by="library"), "/api/tags": {"models": [{"name": n} for n in names]}}
    loaded = rows(*names, owned_by="llamacpp", status={"value": "loaded"})
    for style, over in (("ollama", ollama), ("llama-router", {"/v1/models": loaded})):
        server = Server(style, over)
        found = await look(server, URL, "auto")
        assert found is not None
        assert len(found.about) == 300
        assert len(server.asked) < 9
    server = Server("ollama", {**ollama, "/api/show": {"capabilities": ["thinking"]}})
    found = await look(server, URL, "auto")
    assert found is not None
    assert len(server.asked) == 65
    assert sum(told.thinks is True for told in found.about.values()) == 61


@pytest.mark.parametrize("engine", ["llama-server", "unsloth"])
async def test_a_server_that_wants_a_key_is_known_by_its_header(engine):
    """llama-server names itself on every answer, on a 401 and while it loads; its list comes later."""
    (name,) = DIALECTS[engine].servers

    async def refuses(url, body):
        return {"server": name}, None

    found = await look(refuses, URL, "auto")
    assert found is not None
    assert (found.engine, found.models) == (engine, ())


@pytest.mark.parametrize("state", ["unloaded", "loading", "sleeping", "downloading", "failed"])
async def test_a_router_without_a_loaded_model_is_asked_for_itself_alone(state):
    """The name of such a model stands in no question."""
    listed = rows("a", "b/c?d", owned_by="llamacpp", status={"value": state})
    server = Server("llama-router", {"/v1/models": listed})
    found = await look(server, URL, "auto")
    assert found is not None
    assert server.paths == ["/v1/models", "/props"]
    assert set(found.about.values()) == {About(loaded=False)}
    assert found.version == "b11434-fake"


async def test_a_routers_model_is_named_as_one_word():
    """A name with signs of its own does not become another question."""
    listed = rows("a/b?c&autoload=true#d", owned_by="llamacpp", status={"value": "loaded"})
    server = Server("llama-router", {"/v1/models": listed})
    await look(server, URL, "auto")
    assert server.paths == ["/v1/models", "/props?model=a%2Fb%3Fc%26autoload%3Dtrue%23d&autoload=false"]


@pytest.mark.parametrize(
    "row",
    [
        {"think_efforts": {"support": True, "valid_efforts": ["low", "high", "max"], "default_effort": "high"}},
        {"support_efforts": ["low", "high", "max"], "default_effort": "max"},
    ],
)
async def test_both_shapes_of_kimis_efforts_are_read(row):
    """The platform and the coding endpoint have written both."""
    found = await look(Server("kimi", {"/v1/models": rows("k3", context_length=262144, **row)}), URL, "kimi")
    assert found is not None
    assert found.of("k3") == About(262144, efforts=("low", "high", "max"))


async def test_efforts_that_a_server_lists_in_any_order_rise():
    """The first is taken for the lowest, so a falling list would be a slow box's longest thoughts."""
    listed = rows("k3", owned_by="moonshot", support_efforts=["max", "high", "low"])
    found = await look(Server("kimi", {"/v1/models": listed}), URL, "kimi")
    assert found is not None
    assert found.of("k3").efforts == ("low", "high", "max")


async def test_a_server_of_one_model_answers_to_any_name():
    """One of several does not: an unknown name is an unknown model."""
    for style, limit in (("vllm", 9000), ("ollama", None)):
        found = await look(Server(style), URL, "auto")
        assert found is not None
        assert found.of("anything").context_limit == limit
        assert found.of("kimi-k3").context_limit == 9000


# a later look


@pytest.mark.parametrize("style", ["llama-server", "llama-router", "sglang", "ollama", "lmstudio", "vllm"])
async def test_what_a_look_does_not_bring_stays_as_it_was(style):
    """Each path in turn fails, alone: nothing that was known is lost."""
    before = await look(Server(style), URL, "auto")
    assert before is not None
    for lost in {path.partition("?")[0] for path in ["/v1/models", *ASKED[style]]}:
        after = await look(Server(style, {lost: LOST}), URL, "auto")
        now = after.over(before) if after else before
        assert now.engine == before.engine
        assert now.version == before.version
        for name, told in before.about.items():
            kept = now.of(name)
            assert (kept.context_limit, kept.template, kept.thinks, kept.efforts) == (
                told.context_limit,
                told.template,
                told.thinks,
                told.efforts,
            ), (lost, name)


async def test_an_engine_that_only_its_door_tells_is_not_forgotten_when_that_is_silent():
    """A busy moment does not make Ollama with one's own models another engine."""
    mine = {"/v1/models": rows("me/m", owned_by="me")}
    before = await look(Server("ollama", mine), URL, "auto")
    after = await look(Server("ollama", {**mine, "/api/version": LOST}), URL, "auto")
    assert before is not None
    assert before.engine == "ollama"
    assert (after.over(before) if after else before).engine == "ollama"


async def test_another_engine_on_the_same_port_brings_nothing_of_the_old_one():
    """Version, window and template are the new server's, or unknown."""
    old, new = await look(Server("llama-server"), URL, "auto"), await look(Server("tokenspeed"), URL, "auto")
    assert old is not None
    assert new is not None
    now = new.over(old)
    assert (now.engine, now.version, dict(now.about)) == FOUND["tokenspeed"]


async def test_a_model_that_is_gone_is_forgotten():
    """What a list no longer has is not served any more."""
    old = await look(Server("vllm", {"/v1/models": rows("a", "b", owned_by="vllm")}), URL, "auto")
    new = await look(Server("vllm", {"/v1/models": rows("b", "c", owned_by="vllm")}), URL, "auto")
    assert new is not None
    assert list(new.over(old).about) == ["b", "c"]


# through the whole proxy


def auto(url: str, engine: str = "auto", **table: Any) -> Any:
    """Settings for one backend, found by itself, and not measured."""
    return settings(url, backends={"local": {"url": url, "engine": engine, "slow": False, **table}})


async def probed(proxy: Running) -> probes.Found:
    """What the look at the start found."""
    backend = proxy.pipeline.backends.first
    await backend.look_again()
    assert backend.found is not None
    return backend.found


@pytest.mark.parametrize("style", FOUND)
async def test_each_engine_is_found_over_a_socket(style):
    """The same as without one; and what arrives at the server is what is meant to, and no chat."""
    async with FakeBackend(style=style, model="kimi-k3", context=9000) as backend, serving(auto(backend.url)) as proxy:
        found = await probed(proxy)
        asked = [
            (request.method, request.path + (f"?{request.query}" if request.query else ""), request.raw)
            for request in backend.others
        ]
        assert backend.requests == []
    assert (found.engine, found.version, dict(found.about)) == FOUND[style]
    assert sorted(asked) == sorted(("GET", path, b"") for path in ["/v1/models", *ASKED[style]])


@pytest.mark.parametrize("style", FOUND)
async def test_a_thought_is_put_back_for_each_engine_that_is_found(style):
    """Under the name that it reads, streamed and counted in its manner."""
    async with FakeBackend(THOUGHT, style=style, model="kimi-k3") as backend, serving(auto(backend.url)) as proxy:
        await proxy.chat(USER, model="kimi-k3", stream=True)
        second = await proxy.chat(USER, SAID, MORE, model="kimi-k3")
        row = (await proxy.rows(2))[1]
    name = "reasoning" if style == "ollama" else "reasoning_content"
    assert backend.requests[-1].body["messages"][1] == {**SAID, name: "Two names came."}
    assert (second.status_code, row["engine"], row["turns_restored"]) == (200, FOUND[style][0], 1)


PAGE = raw(b"<!doctype html><title>Sign in</title>", headers={"content-type": "text/html"})


@pytest.mark.parametrize("listed", [error(401, "no key"), PAGE, document({"detail": "x"}), error(503, "Loading model")])
async def test_a_server_that_does_not_tell_is_spoken_to_plainly(listed):
    """A 401, a page of HTML, another JSON: the request goes out all the same."""
    async with FakeBackend(THOUGHT, paths={"/v1/models": listed}) as backend, serving(auto(backend.url)) as proxy:
        assert (await proxy.chat(USER)).status_code == 200
        assert (await proxy.rows())[0]["engine"] == "openai"


@pytest.mark.parametrize("path", ["/v1/models", "/version", "/props"])
async def test_a_probe_that_hangs_holds_a_request_for_its_wait_and_no_longer(path, monkeypatch):
    """Whichever question is not answered; once it is, the engine is known."""
    monkeypatch.setattr("proxy.backend.PROBE_WAIT", 0.1)
    monkeypatch.setattr("proxy.backend.PROBE_SECONDS", 60.0)  # a request that waited for it would fail the test
    style = {"/version": "vllm", "/props": "llama-server"}.get(path, "vllm")
    go = asyncio.Event()
    async with FakeBackend(THOUGHT, style=style, model="m") as backend:
        doors = dict(backend.paths)
        held = doors[path]
        assert isinstance(held, Reply)
        backend.paths[path] = held.after(go)
        async with serving(auto(backend.url)) as proxy:
            for _ in range(3):
                assert (await proxy.chat(USER)).status_code == 200
            go.set()
            assert (await probed(proxy)).engine == style
            await proxy.chat(USER)
            engines = [row["engine"] for row in await proxy.rows(4)]
    assert engines == ["openai"] * 3 + [style]


async def test_hanging_probes_of_several_backends_are_waited_for_together(monkeypatch):
    """A model that nobody is known to serve is refused after one wait, however many backends are silent."""
    monkeypatch.setattr("proxy.backend.PROBE_WAIT", 0.5)
    monkeypatch.setattr("proxy.backend.PROBE_SECONDS", 60.0)
    never = asyncio.Event()
    async with FakeBackend(THOUGHT, paths={"/v1/models": document({}).after(never)}) as backend:
        tables = {f"b{number}": {"url": backend.url, "engine": "auto", "models": []} for number in range(12)}
        given = settings(backend.url, backends={**tables, "local": {"url": backend.url, "models": []}})
        loop = asyncio.get_running_loop()
        async with serving(given) as proxy:
            start = loop.time()
            assert (await proxy.chat(USER, model="nobody")).status_code == 404
            assert loop.time() - start < 12 * 0.5  # one after the other would take longer


async def test_a_server_that_comes_back_as_another_is_told_things_in_its_own_words(monkeypatch):
    """After a failure it is looked at again, and nothing of the old engine is said to the new one."""
    monkeypatch.setattr("proxy.backend.PROBE_AGAIN", 0.0)
    async with FakeBackend(THOUGHT, style="llama-server", model="kimi-k3", context=9000) as first:
        url, port = first.url, first.port
        async with serving(auto(url, slow=True)) as proxy:
            await proxy.chat(USER, model="kimi-k3")
            assert first.requests[0].body["chat_template_kwargs"] == {"thinking_effort": "low"}
            await first.__aexit__(None, None, None)
            assert (await proxy.chat(USER, model="kimi-k3")).status_code == 502
            async with FakeBackend(THOUGHT, style="ollama", model="kimi-k3", context=500, port=port) as second:
                await proxy.chat(USER, model="kimi-k3")
                assert second.requests[0].body["reasoning_effort"] == "low"
                assert "chat_template_kwargs" not in second.requests[0].body
            engines = [row["engine"] for row in await proxy.rows(3)]
    assert engines == ["llama-server", "llama-server", "ollama"]


async def test_a_server_is_looked_at_until_a_look_went_well_after_a_failure(monkeypatch):
    """That it answers again tells nothing about what it is."""
    monkeypatch.setattr("proxy.backend.PROBE_AGAIN", 0.0)
    async with FakeBackend(THOUGHT, style="llama-server", model="kimi-k3") as first:
        port = first.port
        async with serving(auto(first.url)) as proxy:
            await proxy.chat(USER, model="kimi-k3")
            await first.__aexit__(None, None, None)
            for _ in range(2):
                assert (await proxy.chat(USER, model="kimi-k3")).status_code == 502
            monkeypatch.setattr("proxy.backend.PROBE_AGAIN", 1000.0)
            async with FakeBackend(THOUGHT, style="ollama", model="kimi-k3", port=port):
                await proxy.chat(USER, model="kimi-k3")
                monkeypatch.setattr("proxy.backend.PROBE_AGAIN", 0.0)
                await proxy.chat(USER, model="kimi-k3")
                assert (await proxy.rows(5))[-1]["engine"] == "ollama"


# names of thoughts


@pytest.mark.parametrize("engine", ["openai", "lmstudio"])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_server_gets_thoughts_under_the_name_under_which_it_sends_them(engine, stream):
    """Nobody knows what a plain server reads, and LM Studio writes gpt-oss's under another name: each model has one."""

    def rules(request: Request) -> Reply:
        return answer("Two files.", reasoning="R", field="reasoning" if request.get("model") == "a" else None)

    async with FakeBackend(rules=rules, style=engine) as backend, serving(auto(backend.url, engine)) as proxy:
        for model, name in (("a", "reasoning"), ("b", "reasoning_content"), ("a", "reasoning")):
            await proxy.chat(USER, model=model, stream=stream)
            await proxy.chat(USER, SAID, MORE, model=model)
            assert backend.requests[-1].body["messages"][1] == {**SAID, name: "R"}


@pytest.mark.parametrize(
    ("version", "name"),
    [
        ("0.15.1", "reasoning_content"),
        ("0.16.0", "reasoning"),
        ("0.19.2rc1", "reasoning"),
        ("v0.21.0", "reasoning"),
        ("0.22.0", "reasoning_content"),
        ("0.32.0", "reasoning_content"),
        ("1.0.0", "reasoning_content"),
        ("0.17.0+cu130", "reasoning"),
        ("main", "reasoning_content"),
        ("", "reasoning_content"),
    ],
)
def test_vllm_reads_thoughts_under_the_name_of_its_version(version, name):
    """From 0.16 to 0.21 it reads `reasoning` alone."""
    assert DIALECTS["vllm"].field_for(version) == name


async def test_an_older_vllm_gets_thoughts_under_the_one_name_that_it_reads():
    """The version that the probe found decides, not the name under which its answers have the thought."""
    paths = {"/version": document({"version": "0.17.1"})}
    reply = answer("Two files.", reasoning="Two names came.", field="reasoning_content")
    async with FakeBackend(reply, style="vllm", paths=paths) as backend, serving(auto(backend.url)) as proxy:
        await proxy.chat(USER)
        await proxy.chat(USER, SAID, MORE)
    assert backend.requests[-1].body["messages"][1] == {**SAID, "reasoning": "Two names came."}


# efforts and budgets that an engine would refuse


async def test_ollama_gets_a_default_effort_only_for_a_model_that_it_says_thinks():
    """It answers 400 otherwise; the client's own word passes."""
    words = {"kimi-k3": "low", "kimi-k3:cloud": "low", "plain:latest": None, "unknown": None}
    async with FakeBackend(THOUGHT, style="ollama", model="kimi-k3") as backend:
        async with serving(auto(backend.url, slow=True, family="kimi-k3", models=[])) as proxy:
            for model, word in words.items():
                silent = await proxy.chat(USER, model=model)
                assert silent.headers["x-proxy-effort"] == ("low; reason=slow-backend" if word else "-")
                await proxy.chat(MORE, model=model, reasoning_effort="high")
                sent = [request.get("reasoning_effort") for request in backend.requests[-2:]]
                assert sent == [word, "high"]


@pytest.mark.parametrize("stream", [False, True])
async def test_vllm_gets_a_thinking_budget_only_after_a_thought_came_apart(stream):
    """Without a reasoning parser it refuses the field; an answer without a thought proves none."""
    replies = [answer("One."), answer("<think>R</think>Two."), answer("Three.", reasoning="R"), answer("Four.")]
    async with FakeBackend(*replies, style="vllm") as backend, serving(auto(backend.url)) as proxy:
        for _ in range(4):
            await proxy.chat(USER, max_tokens=9000, stream=stream)
    budgets = [request.get("thinking_token_budget") for request in backend.requests]
    assert budgets == [None, None, None, 9000 - 1024]


async def test_a_look_that_brings_nothing_new_is_not_told_again(caplog, monkeypatch):
    """Ollama's list of running models has a time that moves; a log line each minute would hide the others."""
    monkeypatch.setattr("proxy.backend.PROBE_AGAIN", 0.0)
    caplog.set_level("INFO", "proxy.backend")
    async with FakeBackend(THOUGHT, style="ollama", model="kimi-k3") as backend:
        async with serving(auto(backend.url)) as proxy:
            (one,) = proxy.pipeline.backends.by_name.values()
            for _ in range(3):
                await one.look_again()
                answers: Any = one.found.answers if one.found else {}
                assert answers.pop("/api/ps")
    assert len([line for line in caplog.messages if "ollama" in line]) == 1
