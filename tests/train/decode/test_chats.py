"""Chat templates against what they must write."""

import json

import numpy as np
import pytest

from attention import UsageError
from train.data.tokenisers import subwords
from train.decode import chats

TEMPLATE = """
{%- for message in messages %}
    {%- if message['role'] not in ['user', 'assistant'] %}{{ raise_exception('no role ' + message['role']) }}{% endif %}
    {{- '<|' + message['role'] + '|>' + message['content'] | trim + eos_token }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}
"""
TURNS = [{"role": "user", "content": " Hello "}]


def folder_of(tmp_path, **settings):
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": "</s>"}} | settings))
    return str(tmp_path)


@pytest.mark.parametrize("where", ["a text", "a list", "a file"])
def test_a_template_writes_the_conversation_up_to_the_answer(tmp_path, where):
    several = [{"name": "tools", "template": "no"}, {"name": "default", "template": TEMPLATE}]
    given = {"a text": {"chat_template": TEMPLATE}, "a list": {"chat_template": several}, "a file": {}}[where]
    if where == "a file":
        (tmp_path / "chat_template.jinja").write_text(TEMPLATE)
    assert chats.conversation(folder_of(tmp_path, **given), TURNS) == ("<|user|>Hello</s><|assistant|>", "</s>")


@pytest.mark.parametrize(
    ("settings", "turns", "message"),
    [
        ({}, TURNS, "has no chat template; leave out --chat"),
        ({"chat_template": TEMPLATE}, [{"role": "judge", "content": ""}], "conversation: no role judge"),
        ({"chat_template": "{{ messages.__class__.__mro__ }}"}, TURNS, "cannot write this conversation: access to"),
    ],
)
def test_mistakes_are_one_sentence(tmp_path, settings, turns, message):
    with pytest.raises(UsageError, match=message):
        chats.conversation(folder_of(tmp_path, **settings), turns)


def test_special_tokens_of_a_template_are_themselves_and_those_of_a_text_are_not():
    tokeniser = subwords.fit_bpe(["some text"] * 3, size=300)
    end = tokeniser.special["end"]
    assert tokeniser.encode_marked("a</s>")[-1] == end
    assert end not in tokeniser.encode("a</s>")
    np.testing.assert_array_equal(tokeniser.encode_marked("text"), tokeniser.encode("text"))
