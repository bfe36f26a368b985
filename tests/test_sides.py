"""Side requests: the front ends' own prompts are recognised, and no question that a user asks."""

# ruff: noqa: RUF001 - Chinese prompts have Chinese punctuation

from __future__ import annotations

import datetime
import re
from typing import Any

import pytest
from chats import asks, request, result, says
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from proxy.messages import ChatRequest, Message
from proxy.sides import OWN, Side, name_of, shipped

ROWS = shipped()
CHAT = "### Chat History:\n<chat_history>\nUSER: Say one\n</chat_history>"
HISTORY = (asks("Say one"), says("One."))


def instructs(text: str, role: str = "system") -> dict[str, Any]:
    """A message that says what the model is."""
    return {"role": role, "content": text}


PROMPTS: list[tuple[str, list[dict[str, Any]]]] = [
    (
        "open-webui title",
        [
            asks(
                "### Task:\nGenerate a concise title summarizing the chat history.\n### Guidelines:\n- Keep it short.\n"
                f'### Output:\nJSON format: {{ "title": "your concise title here" }}\n{CHAT}'
            )
        ],
    ),
    (
        "open-webui title",
        [
            asks(
                "### Task:\nGenerate a concise, 3-5 word title with an emoji summarizing the chat history.\n"
                f"### Output:\nJSON format\n{CHAT}"
            )
        ],
    ),
    (
        "open-webui tags",
        [
            asks(
                "### Task:\nGenerate 1-3 broad tags categorizing the main themes of the chat history, along with 1-3 "
                f'more specific subtopic tags.\n\n### Output:\nJSON format: {{ "tags": ["tag1"] }}\n\n{CHAT}'
            )
        ],
    ),
    (
        "open-webui suggestions",
        [
            asks(
                "### Task:\nSuggest 3-5 relevant follow-up questions or prompts that the user might naturally ask next."
                f'\n### Output:\nJSON format: {{ "follow_ups": ["Question 1?"] }}\n{CHAT}'
            )
        ],
    ),
    (
        "open-webui search queries",
        [
            asks(
                "### Task:\nAnalyze the chat history to determine the necessity of generating search queries, in the "
                f"given language.\n\n### Output:\nStrictly return in JSON format: \n\n{CHAT}\n"
            )
        ],
    ),
    (
        "open-webui image prompt",
        [
            asks(
                "### Task:\nGenerate a detailed prompt for am image generation task based on the given language and "
                f"context.\n\n### Output:\nStrictly return in JSON format:\n\n{CHAT}"
            )
        ],
    ),
    (
        "open-webui autocompletion",
        [
            asks(
                "### Task:\nYou are an autocompletion system. Continue the text in `<text>`\n---\n### Context:\n"
                "<chat_history>\n</chat_history>\n<type>General</type>  \n<text>Say</text>  \n#### Output:\n"
            )
        ],
    ),
    (
        "open-webui emoji",
        [
            asks(
                "Your task is to reflect the speaker's likely facial expression through a fitting emoji. Interpret "
                "emotions from the message.\n\nMessage: ```Say one```"
            )
        ],
    ),
    ("open-webui task", [asks("### Task:\nName this chat in Latin.\nUSER: Say one")]),
    (
        "open-webui streamed task",
        [asks(f"### Task:\nName this chat in Latin.\n### Guidelines:\n- Be brief.\n### Output:\nA text\n{CHAT}")],
    ),
    (
        "librechat title",
        [
            asks(
                "Analyze this conversation and provide:\n1. The detected language of the conversation\n2. A concise "
                "title in the detected language (5 words or less, no punctuation or quotation)\n\nUser: Say one"
            )
        ],
    ),
    (
        "librechat title",
        [
            asks(
                "Provide a concise, 5-word-or-less title for the conversation, using title case conventions. Only "
                "return the title itself.\n\nConversation:\nUser: Say one"
            )
        ],
    ),
    (
        "librechat title",
        [
            instructs(
                "Write a concise title for this conversation in the given language. Title in 5 Words or Less. No "
                "Punctuation or Quotation.\nUser: Say one"
            ),
            asks("Language: English"),
        ],
    ),
    ("librechat language", [instructs("Detect the language used in the following text."), asks("Say one")]),
    (
        "lobechat title",
        [
            instructs(
                "You are a professional conversation summarizer. Generate a concise title that captures the essence of "
                "the conversation.\n\nRules:\n- Output ONLY the title text"
            ),
            asks("user: Say one\nassistant: One."),
        ],
    ),
    (
        "lobechat title",
        [
            instructs("你是一名擅长会话的助理，你需要将用户的会话总结为 10 个字以内的标题"),
            asks("user: Say one\n\n请总结上述对话为10个字以内的标题，不需要包含标点符号"),
        ],
    ),
    (
        "lobechat artwork title",
        [
            instructs("你是一位资深的 AI 艺术创作者和语言大师。你需要根据用户提供的 AI image prompt 总结出一个标题。"),
            asks("提示词：\n1. a cat"),
        ],
    ),
    (
        "lobechat suggestions",
        [
            instructs("You are a sidecar that extracts 0-4 quick-reply suggestions from the last assistant message."),
            asks('Last assistant message:\n"""\nOne.\n"""'),
        ],
    ),
    (
        "lobechat search query",
        [
            instructs(
                "Given the following conversation and a follow-up question, rephrase the follow up question to be a "
                "standalone question, in its original language.\n<chatHistory>\nSay one\n</chatHistory>\n"
            ),
            asks("Follow Up Input: And two?, it's standalone query:"),
        ],
    ),
    (
        "lobechat tags",
        [
            instructs("你是一名擅长会话标签总结的助理，你需要将用户的输入的内容提炼出分类标签"),
            asks("输入: {你是一名文案大师} [zh-CN]"),
            says("起名,写作,创意"),
            asks("输入: {Say one} [en-US]"),
        ],
    ),
    (
        "lobechat emoji",
        [
            instructs(
                "You are an emoji expert who selects the most appropriate emoji to represent concepts, emotions, or "
                "topics.\n\nRules:\n- Output ONLY a single emoji"
            ),
            asks("I just got a promotion at work"),
            says("🎉"),
            asks("Say one"),
        ],
    ),
    (
        "lobechat agent name",
        [
            instructs("你是一名擅长起名的起名大师，名字需要有文学内涵\n输出: {角色名}"),
            asks("输入: {你是一名前端代码专家} [en-US]"),
            says("TS Transformer"),
            asks("输入: {Say one} [en-US]"),
        ],
    ),
    (
        "lobechat agent description",
        [
            instructs("你是一名擅长技能总结的助理，你需要将用户的输入的内容总结为一个角色技能简介"),
            asks("输入: {你是一名文案大师} [zh-CN]"),
            says("擅长文创艺术作品起名"),
            asks("输入: {Say one} [en-US]"),
        ],
    ),
    (
        "opencode title",
        [
            instructs("You are a title generator. You output ONLY a thread title. Nothing else.\n\n<task>"),
            asks("Generate a title for this conversation:\n"),
            asks('"Say one"'),
        ],
    ),
    (
        "opencode summary",
        [
            instructs("Summarize what was done in this conversation. Write like a pull request description.\n\nRules:"),
            asks("Say one"),
        ],
    ),
    (
        "cherry-studio title",
        [
            instructs(
                "You are an assistant skilled in conversation. You need to summarize the user's conversation into a "
                "title within 10 words."
            ),
            asks('[{"role":"user","mainText":"Say one"}]'),
        ],
    ),
    (
        "cherry-studio search query",
        [
            asks(
                "\n  You are an AI question rephraser. Your role is to rephrase follow-up queries from a conversation "
                "into standalone queries\n  Follow up question: And two?\n  Rephrased question:\n"
            )
        ],
    ),
    (
        "cherry-studio language",
        [
            asks(
                "Your task is to precisely identify the language used in the user's input text and output its "
                "corresponding language code\n\n<text>\nSay one\n</text>\n"
            )
        ],
    ),
    (
        "nextchat title",
        [
            *HISTORY,
            asks(
                "Please generate a four to five word title summarizing our conversation without any lead-in, "
                "punctuation, quotation marks, periods, symbols, bold text, or additional text."
            ),
        ],
    ),
    ("nextchat title", [*HISTORY, asks("使用四到五个字直接返回这句话的简要主题，不要解释、不要标点、不要语气词")]),
    (
        "chatbox title",
        [
            asks(
                "Based on the chat history, give this conversation a name.\nKeep it short - 30 characters max, "
                'example "Mars\'s Distance".\n\nThe name is:'
            )
        ],
    ),
    (
        "big-agi title",
        [
            instructs(
                "You are an AI conversation titles assistant who specializes in creating expressive yet few-words chat "
                "titles."
            ),
            asks("Analyze the given short conversation (every line is truncated)\n```\n- You: Say one\n```"),
        ],
    ),
    (
        "chat-ui title",
        [
            instructs("You are a chat thread titling assistant.\nGoal: Produce a very short, descriptive title"),
            asks('User message: "Say one"'),
        ],
    ),
    (
        "continue title",
        [
            asks(
                "Given the following... please reply with a title for the chat that is 3-4 words in length, no "
                "additional text or explanation\n\nOne."
            )
        ],
    ),
    (
        "vercel chatbot title",
        [
            instructs(
                "\n\n    - you will generate a short title based on the first message a user begins a conversation "
                "with\n    - ensure it is not more than 80 characters long"
            ),
            asks('{"role":"user","parts":[]}'),
        ],
    ),
    (
        "crush title",
        [
            instructs("You will generate a short title based on the first message a user begins a conversation with."),
            asks("Generate a concise title for the following content:\n\nSay one"),
        ],
    ),
    (
        "zed title",
        [
            instructs("You are a highly skilled software engineer."),
            *HISTORY,
            asks("Generate a concise 3-7 word title for this conversation, omitting punctuation. Go straight to it."),
        ],
    ),
    (
        "zed commit message",
        [
            asks(
                "You are an expert at writing Git commits. Your job is to write a short clear commit message that "
                "summarizes the changes.\n\nHere are the changes in this commit:\n+one"
            )
        ],
    ),
    (
        "goose title",
        [
            instructs("Generate a short title (four words or less) for this conversation.\n\nRules:"),
            asks("---BEGIN USER MESSAGES---\nSay one\n---END USER MESSAGES---"),
        ],
    ),
    (
        "goose title",
        [
            instructs("Generate a short title (four words or less) that describes the topic of the user's messages.\n"),
            asks("---BEGIN USER MESSAGES---\nSay one\n---END USER MESSAGES---"),
        ],
    ),
    (
        "goose title",
        [
            instructs("Reply with only a description in four words or less"),
            asks("Here are the first few user messages:\nSay one\n\nBased on the conversation so far, provide a name"),
        ],
    ),
    (
        "qwen-code title",
        [
            instructs(
                "Generate a concise, sentence-case title (3-7 words) that captures what this programming-assistant "
                "session is about."
            ),
            asks("Conversation so far:\nUser: Say one\n\nGenerate the session title now."),
        ],
    ),
    (
        "copilot title",
        [
            instructs(
                "You are an expert in crafting pithy titles for chatbot conversations. You are presented with a chat "
                "request, and you reply with a brief title"
            ),
            asks("Please write a brief title for the following request:\n\nSay one"),
        ],
    ),
    (
        "aider commit message",
        [
            instructs(
                "You are an expert software engineer that generates concise, one-line Git commit messages based on the "
                "provided diffs.\nReview the provided context and diffs which are about to be committed to a git repo."
            ),
            asks("# Diffs:\n+one"),
        ],
    ),
    (
        "aider commit message",
        [
            instructs(
                "You are an expert software engineer.\nReview the provided context and diffs which are about to be "
                "committed to a git repo."
            ),
            asks("# Diffs:\n+one"),
        ],
    ),
    (
        "kilo-code commit message",
        [
            asks(
                "# Conventional Commit Message Generator\n## System Instructions\nYou are an expert Git commit message "
                "generator that creates conventional commit messages based on staged changes."
            )
        ],
    ),
]
EACH = pytest.mark.parametrize(("name", "messages"), PROMPTS, ids=[name for name, _ in PROMPTS])


def streamed(name: str) -> bool:
    """How the front end of that row sends its request."""
    return next(row for row in ROWS if row.name == name).streamed or False


def parted(message: dict[str, Any]) -> dict[str, Any]:
    """The message with its text in two parts, and a picture behind them."""
    text = message["content"]
    cut = len(text) // 2
    texts = [{"type": "text", "text": text[:cut]}, {"type": "text", "text": text[cut:]}]
    return {**message, "content": [*texts, {"type": "image_url", "image_url": {"url": "data:,"}}]}


@EACH
def test_a_front_ends_own_prompt_is_recognised(name, messages):
    """Under the name of its row."""
    assert name_of(request(*messages, stream=streamed(name))) == name


@EACH
def test_a_prompt_in_parts_is_the_same_prompt(name, messages):
    """Some front ends send every text as a list of parts."""
    assert name_of(request(*map(parted, messages), stream=streamed(name))) == name


@EACH
def test_a_request_with_tools_is_no_side_request(name, messages):
    """An agent whose system prompt is a title generator does what its user asked for."""
    tools = [{"type": "function", "function": {"name": "ls", "parameters": {}}}]
    assert name_of(request(*messages, stream=streamed(name), tools=tools), ["."]) is None


@EACH
def test_a_task_that_was_answered_goes_on_as_a_chat(name, messages):
    """The next question of the user is their own, though the chat opens like a task."""
    if not next(row for row in ROWS if row.name == name).examples:
        assert name_of(request(*messages, says("One."), asks("And in French?"), stream=streamed(name))) is None


def test_every_pattern_has_a_prompt_that_it_recognises():
    """None is shipped that no front end's prompt was held against."""
    texts = {row.name: [m["content"].lstrip() for name, ms in PROMPTS if name == row.name for m in ms] for row in ROWS}
    for row in ROWS:
        for pattern in (*row.first, *row.last):
            assert any(re.match(pattern, text) for text in texts[row.name]), (row.name, pattern)


def test_every_row_says_where_it_comes_from():
    """With a name of its own, a source, and a date that is one."""
    assert len({row.name for row in ROWS}) == len(ROWS)
    for row in ROWS:
        assert row.source, row.name
        datetime.date.fromisoformat(row.date)


def test_no_pattern_can_search_a_long_prompt_twice():
    """They are matched at the beginning, repeat no groups, and skip nothing but blanks."""
    for row in ROWS:
        for pattern in (*row.first, *row.last):
            assert not re.search(r"(?<!\\)\)[*+{]", pattern), (row.name, pattern)
            assert not re.search(r"(?<!\\)\.[*+{]", pattern), (row.name, pattern)


@pytest.mark.parametrize(
    "wrong",
    [
        {"first": ["a("]},
        {"first": ["a"], "last": ["a"]},
        {},
        {"first": ["a"], "source": ""},
        {"first": [""]},
        {"first": ["a"], "stream": True},
    ],
)
def test_a_row_that_could_never_be_right_is_refused(wrong):
    """A broken pattern, two places or none, no source, an empty pattern, an unknown key."""
    with pytest.raises(ValidationError):
        Side(**{"name": "n", "source": "s", "date": "2026-11-30", **wrong})


RAG = (
    "### Task:\nRespond to the user query using the provided context, incorporating inline citations in the format "
    '[id] (e.g., <source id="1">).\n\n### Guidelines:\n- Be brief.\n\n### Output:\nA text.\n\n'
    "<context>\n<chat_history>\n</chat_history>\n</context>\n\nWhat does it say?"
)
OWN_QUESTIONS: dict[str, tuple[list[dict[str, Any]], bool]] = {
    "a title for an essay": ([asks("Write a title for my essay on Mars")], False),
    "a title, in a front end's words": ([asks("Generate a concise title for my essay")], False),
    "a short title": ([asks("Generate a short title (four words or less) for my essay on Mars")], False),
    "a name for a chat": ([asks("Give this conversation a name")], True),
    "homework that is streamed": ([asks("### Task:\nProve that 2 is prime.\n### Output:\nA proof")], True),
    "homework after words of the user's": ([asks("Please solve this.\n### Task:\nProve that 2 is prime.")], False),
    "a heading that goes on": ([asks("### Task: prove that 2 is prime")], False),
    "a task of several messages": ([asks("### Task:\nProve it."), asks("### Task:\nProve that, too.")], False),
    "a question about documents, not streamed": ([asks(RAG)], False),
    "a question about documents, streamed": ([asks(RAG)], True),
    "documents in the system prompt": ([instructs(RAG), asks("What does it say?")], False),
    "an assistant that mentions titles": (
        [instructs("You help with texts. You are a title generator. You output ONLY a thread title."), asks("Hi")],
        False,
    ),
    "a question about a prompt": (
        [asks("What is wrong with this prompt? You are a title generator. You output ONLY a thread title.")],
        False,
    ),
    "a chat": ([asks("Say one"), says("One."), asks("Write a title for that")], True),
    "a task in the middle of a chat": ([asks("Say one"), says("One."), asks("### Task:\nSay two.")], False),
    "a chat that once asked for its title": (
        [
            *HISTORY,
            asks("Please generate a four to five word title summarizing our conversation without any lead-in, please"),
            says("Saying One"),
            asks("And in French?"),
        ],
        False,
    ),
    "a tool's turn, where the task is not the last word": (
        [
            asks("Generate a concise 3-7 word title for this conversation, omitting punctuation."),
            says(None, ("c", "ls", {})),
            result("c"),
        ],
        False,
    ),
    "a tool that quotes such a task": (
        [
            asks("What is in the file?"),
            says(None, ("c", "ls", {})),
            result("c", "Generate a concise 3-7 word title for this conversation, omitting punctuation."),
        ],
        False,
    ),
    "an expert's chat": (
        [instructs("You are an expert software engineer.\nReview code that you are shown."), asks("Hi")],
        True,
    ),
    "a text to detect the language of": ([asks("Detect the language used in the following text. Bonjour")], False),
    "nothing but instructions": ([instructs("You help with titles.")], False),
    "no text at all": ([{"role": "user", "content": None}], False),
}


@pytest.mark.parametrize("case", OWN_QUESTIONS)
def test_a_users_own_question_is_none(case):
    """It would get too little thought, and a place behind other requests."""
    messages, stream = OWN_QUESTIONS[case]
    assert name_of(request(*messages, stream=stream)) is None


@pytest.mark.parametrize("role", ["system", "developer"])
def test_a_users_system_prompt_may_stand_before_a_task(role):
    """Open WebUI sends the model's own with its tasks, too."""
    for name, messages in PROMPTS:
        if name.startswith("open-webui"):
            sent = request(instructs("You are terse.", role), *messages, stream=streamed(name))
            assert name_of(sent) == name


def test_a_developers_message_instructs_like_a_system_prompt():
    """pi and its like send that role."""
    for name, (first, *rest) in PROMPTS:
        if first["role"] == "system":
            assert name_of(request({**first, "role": "developer"}, *rest)) == name


@pytest.mark.parametrize("name", [row.name for row in ROWS if row.streamed is None and row.marks and row.first])
def test_a_task_with_all_its_marks_is_recognised_however_it_is_sent(name):
    """A streamed title is a title."""
    messages = next(messages for other, messages in PROMPTS if other == name)
    assert {name_of(request(*messages, stream=stream)) for stream in (True, False)} == {name}


def test_the_recorded_title_request_of_opencode_is_one():
    """As it came: a shorter system prompt, and two user messages."""
    sent = request(
        instructs("You are a title generator. You output ONLY a thread title. Nothing else."),
        asks("Generate a title for this conversation:\n"),
        asks('"Say one"'),
        max_tokens=32000,
    )
    assert name_of(sent) == "opencode title"


def test_an_own_pattern_is_found_anywhere_in_the_first_message():
    """In a string or in parts, and also where a chat goes on behind it."""
    prompt = instructs("You are terse.\nPurpose: name the chat")
    for messages in ([prompt, asks("Hi")], [parted(prompt), asks("Hi")], [prompt, *HISTORY, asks("Hi")]):
        assert name_of(request(*messages), ["^nothing", "(?i)purpose: NAME"]) == OWN


def test_an_own_pattern_is_not_looked_for_in_later_messages():
    """What a user says may contain anything."""
    assert name_of(request(instructs("You are terse."), asks("Purpose: name")), ["Purpose"]) is None


def test_the_name_of_a_row_goes_before_an_own_pattern():
    """It says more."""
    name, messages = PROMPTS[0]
    assert name_of(request(*messages), ["Task"]) == name


def test_a_prompt_of_megabytes_is_read_like_any_other():
    """The mark may be at its very end."""
    long = "### Task:\nGenerate a concise title summarizing it.\n### Output:\n" + "word \n" * 500_000
    assert name_of(request(asks(f"{long}<chat_history>"), stream=True)) == "open-webui title"
    assert name_of(request(asks(long), stream=True)) is None
    assert name_of(request(asks("### Task:" + "\n \t" * 500_000), stream=True)) is None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20) | st.sampled_from([row.name for row in ROWS]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["type", "text", "x"]), inner),
    max_leaves=6,
)
CONTENT = JSON | st.sampled_from([message["content"] for _, messages in PROMPTS for message in messages])
ROLES = st.sampled_from(["system", "developer", "user", "assistant", "tool", "function", "critic"])
MESSAGES = st.lists(st.builds(Message, st.just(b"{}"), ROLES, CONTENT), max_size=5)


@given(MESSAGES, st.booleans(), st.booleans())
def test_no_message_makes_it_raise(messages, stream, has_tools):
    """It is a name that is known, or None; with tools always None."""
    sent = ChatRequest({}, tuple(messages), "m", stream=stream, has_tools=has_tools)
    found = name_of(sent, ["a"])
    assert found in {None, OWN, *(row.name for row in ROWS)}
    assert found is None or not has_tools
    answered = any(message.role in ("assistant", "tool") for message in messages)
    if answered and found not in (None, OWN):
        row = next(row for row in ROWS if row.name == found)
        assert row.last or row.examples
