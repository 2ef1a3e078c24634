import json
import pickle
import string

import numpy as np
import pytest
import tokenizers

from attention.errors import UsageError
from train.data import tokenisers
from train.data.tokenisers import loads, make

TEXTS = [
    "The cat sat on the mat. The mat was flat!",
    "A cat -- a BIG cat -- isn't a dog; <br />dogs bark.",
    "naïve Ünïcode 猫 😀\n\ttabs and  spaces \n",
    "the <s> of the <mask> is [MASK] no </s> token <unk>",
] * 5
SPECS = [
    "bytes",
    "words(size=12)",
    "words(strip=False, lower=False, marks=True)",
    "bpe(size=300)",
    "wordpiece(size=120, lower=True)",
]


@pytest.fixture(scope="module", params=SPECS)
def tokeniser(request):
    return make(request.param, TEXTS)


class TestAll:
    def test_training_again_json_files_and_pickles_give_the_same(self, tokeniser, request, tmp_path):
        trained = make(request.node.callspec.params["tokeniser"], TEXTS)
        (tmp_path / "t.json").write_text(tokeniser.dumps(), encoding="utf-8")
        assert not tokenisers.needs_fitting(f"file:{tmp_path}/t.json")
        for copy in (trained, make(f"file:{tmp_path}/t.json"), pickle.loads(pickle.dumps(tokeniser))):
            assert copy.dumps() == tokeniser.dumps()
            assert (copy.size, copy.special) == (tokeniser.size, tokeniser.special)
            for text in [*TEXTS, "other words"]:
                np.testing.assert_array_equal(copy.encode(text), tokeniser.encode(text))

    def test_ids_are_below_the_size_and_marks_are_not_text(self, tokeniser):
        marks = {i for name, i in tokeniser.special.items() if name != "unknown"}
        for ids, text in zip(tokeniser.encode_batch(TEXTS), TEXTS, strict=True):
            np.testing.assert_array_equal(ids, tokeniser.encode(text))
            assert 0 <= ids.min() <= ids.max() < tokeniser.size
            assert not marks & set(ids.tolist())

        marked = [*marks, *tokeniser.encode(TEXTS[0]), *marks]
        assert tokeniser.decode(marked) == tokeniser.decode(tokeniser.encode(TEXTS[0])) != ""


def test_bytes_are_utf8():
    tokeniser = make("bytes")
    for text in TEXTS[:4]:
        assert tokeniser.encode(text).tolist() == list(text.encode())
        assert tokeniser.decode(tokeniser.encode(text)) == text
    assert tokeniser.decode("ä".encode()[:1]) == "\ufffd"


def words_of(tokeniser):
    return [tokeniser.decode([i]) for i in range(len(tokeniser.special), tokeniser.size)]


class TestWords:
    @pytest.mark.parametrize(
        ("options", "texts", "words", "text", "ids"),
        [
            ("size=6", ["b a a, c b A!"], "a b c", f"C, a zebra (b) {string.punctuation}", [4, 2, 1, 3]),
            ("size=7, marks=True", ["b a a c b A"], "a b", "a b c", [5, 6, 1]),
            ("size=1000", ["a b"], "a b", "b\x1ca\u2028b\u00a0 \t", [3, 2, 3]),
            ("lower=False, strip=False", ["The <unk> , the . ."], ". , <unk> The the", "the <unk> [ PAD ] [UNK]", None),
        ],
    )
    def test_by_hand(self, options, texts, words, text, ids):
        tokeniser = make(f"words({options})", texts)
        assert words_of(tokeniser) == words.split()
        assert tokeniser.encode(text).tolist() == (ids or [6, 4, 1, 1, 1, 1])
        names = ["pad", "unknown", *(["mask", "start", "end"] if "marks" in options else [])]
        assert tokeniser.special == {name: i for i, name in enumerate(names)}

    def test_texts_are_words_between_spaces(self):
        tokeniser = make("words(size=6)", ["b a a, c b A!"])
        assert tokeniser.decode([4, 2, 1, 3, 0, 0]) == "c a [UNK] b"
        assert tokeniser.normalise(" A,  b\n") == "a b"


class TestSubwords:
    def test_bpe_is_lossless_and_may_encode_line_by_line(self):
        tokeniser = make("bpe(size=300)", TEXTS)
        for text in (*TEXTS[:4], "\r\n entirely → different \0 text"):
            assert tokeniser.decode(tokeniser.encode(text)) == text
        lines = ["The cat\n", " sat on\n", "the mat.\n"]
        np.testing.assert_array_equal(np.concatenate(tokeniser.encode_batch(lines)), tokeniser.encode("".join(lines)))

    def test_wordpiece_by_hand(self):
        """Every word of such a small text is one piece; a new word becomes the longest pieces from the left."""
        tokeniser = make("wordpiece(size=200)", ["low lower lowest slow"] * 3)
        vocabulary = json.loads(tokeniser.dumps())["model"]["vocab"]
        assert tokeniser.encode("lower low").tolist() == [vocabulary["lower"], vocabulary["low"]]
        pieces = sorted(vocabulary, key=vocabulary.get)
        assert "".join(pieces[i].removeprefix("##") for i in tokeniser.encode("slowest")) == "slowest"
        assert tokeniser.encode("xyz").tolist() == [tokeniser.special["unknown"]]

    def test_padding_and_truncation_of_a_published_tokeniser_are_ignored(self):
        theirs = tokenizers.Tokenizer.from_str(make("bpe(size=300)", TEXTS).dumps())
        theirs.enable_truncation(2)
        theirs.enable_padding(length=9)
        assert len(loads(theirs.to_str()).encode(TEXTS[0])) > 9


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", r"cannot be used: The tokeniser is damaged \(Expecting"),
        ('{"kind": "words"}', "This is not a tokeniser"),
        ('{"model": 3}', "The package tokenizers cannot read this tokeniser"),
        (None, r"t.json cannot be read \(.*names it as a tokeniser"),
    ],
)
def test_a_file_that_is_no_tokeniser_is_said(tmp_path, content, message):
    if content is not None:
        (tmp_path / "t.json").write_text(content)
    with pytest.raises(UsageError, match=message):
        make(f"file:{tmp_path}/t.json")


def test_hub_names_without_a_network(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(UsageError, match=r"of 'no/such', which data.target_tokeniser names"):
        make("hf:no/such", field="data.target_tokeniser")


def test_a_revision_on_the_hub_is_asked_for(monkeypatch, tmp_path):
    asked = []

    def download(repository, file, revision, **options):
        asked.append((repository, file, revision))
        (tmp_path / file).write_text(make("bpe(size=300)", TEXTS).dumps())
        return str(tmp_path / file)

    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    assert make("hf:bert-base-cased@abc").size == make("hf:bert-base-cased").size == 300
    assert asked == [("bert-base-cased", "tokenizer.json", revision) for revision in ("abc", None)]
