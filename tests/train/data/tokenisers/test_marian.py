"""Marian tokenisers against sentencepiece itself; `tests/parity` compares it with transformers' own."""

import io
import json
import pickle

import numpy as np
import pytest
import sentencepiece

from attention.errors import UsageError
from train.data import tokenisers

GERMAN = [
    "Die Katze saß auf der Matte.",
    "Ein großer Hund bellt die Katze an!",
    "Der Hund schläft, die Katze nicht.",
    "Wo schläft der große Hund heute Nacht?",
    "Heute Nacht schläft er neben der Matte.",
    "Wir wissen nicht, wo die Katze schlafen wird.",
]
ENGLISH = [
    "The cat sat on the mat.",
    "A big dog barks at the cat!",
    "The dog is asleep, the cat is not.",
    "Where will the big dog sleep tonight?",
    "Tonight he will sleep beside the mat.",
    "We do not know where the cat will be sleeping.",
]
TEXTS = ["  two  spaces ", "猫 ½ ﬁ — “quotes”", ">>fr<< Die Katze", ">>xx<< Hund", "a >>fr<< b", "<<"]
TEXTS += GERMAN + ENGLISH


def train(texts, size):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts * 4), model_writer=model, vocab_size=size, hard_vocab_limit=False, minloglevel=2
    )
    return model.getvalue()


def write(folder):
    """Writes the tokenisers of a tiny Marian model as published: few ids are in sentencepiece's order."""
    models = {"source.spm": train(GERMAN, 60), "target.spm": train(ENGLISH, 55)}
    pieces = ["</s>", "<unk>", ">>fr<<"]
    for name, spm in models.items():
        (folder / name).write_bytes(spm)
        processor = sentencepiece.SentencePieceProcessor(model_proto=spm)
        pieces += sorted(processor.id_to_piece(i) for i in range(3, processor.vocab_size()))
    pieces = list(dict.fromkeys(pieces))
    pieces.remove("!")  # a piece that the vocabulary does not have
    vocabulary = {piece: i for i, piece in enumerate([*pieces, "<pad>"])}
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    return models, vocabulary


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    folder = tmp_path_factory.mktemp("marian")
    return folder, *write(folder)


@pytest.fixture(scope="module", params=["source.spm", "target.spm"])
def side(request, published):
    """The tokeniser of one side, sentencepiece's own, and the vocabulary."""
    folder, models, vocabulary = published
    processor = sentencepiece.SentencePieceProcessor(model_proto=models[request.param])
    return tokenisers.make(f"marian:{folder}/{request.param}"), processor, vocabulary


def test_ids_are_the_vocabularys_of_sentencepieces_pieces(side):
    tokeniser, processor, vocabulary = side
    for text in TEXTS:
        language, rest = ([text[:6]], text[6:]) if text.startswith(">>") else ([], text)
        pieces = [*language, *processor.encode(rest, out_type=str)]
        expected = [vocabulary.get(piece, vocabulary["<unk>"]) for piece in pieces]
        ids = tokeniser.encode(text)
        assert ids.dtype == np.int32
        assert ids.tolist() == expected
    assert tokeniser.encode(">>fr<< x")[0] == vocabulary[">>fr<<"]
    assert tokeniser.encode(">>xx<< x")[0] == vocabulary["<unk>"]


def test_both_sides_share_ids_but_cut_their_own_pieces(published):
    folder, _, vocabulary = published
    source, target = (tokenisers.make(f"marian:{folder}/{side}.spm") for side in ("source", "target"))
    assert source.size == target.size == len(vocabulary)
    assert source.special == target.special
    assert source.special == {"pad": len(vocabulary) - 1, "unknown": 1, "end": 0, "start": len(vocabulary) - 1}
    assert len(source.encode(GERMAN[0])) < len(target.encode(GERMAN[0]))


def test_texts_come_back(side):
    tokeniser, processor, _ = side
    text = (GERMAN if processor.encode(GERMAN[0], out_type=str)[0] == "▁Die" else ENGLISH)[0]
    ids = tokeniser.encode(text)
    marks = [tokeniser.special[name] for name in ("start", "unknown", "end", "pad")]
    assert tokeniser.decode([marks[0], *ids, *marks[1:]]) == tokeniser.decode(ids) == text
    assert tokeniser.decode([]) == tokeniser.decode(marks) == ""


def test_no_text_turns_into_marks(side):
    tokeniser, *_ = side
    for text in ("</s>", "<pad>", "a <pad> b</s>", ">></s><< c"):
        assert not {tokeniser.special["pad"], tokeniser.special["end"]} & set(tokeniser.encode(text).tolist())


def test_json_and_pickles_come_back(side):
    tokeniser, *_ = side
    for copy in (tokenisers.loads(tokeniser.dumps()), pickle.loads(pickle.dumps(tokeniser))):
        assert copy.dumps() == tokeniser.dumps()
        assert (copy.size, copy.special) == (tokeniser.size, tokeniser.special)
        for text, ids in zip(TEXTS, copy.encode_batch(TEXTS), strict=True):
            np.testing.assert_array_equal(ids, tokeniser.encode(text))
            assert copy.decode(ids) == tokeniser.decode(ids)


@pytest.mark.parametrize("spec", ["marian:", "marian:folder", "marian:folder/vocab.json", "marian:source.spm"])
def test_other_specs_are_one_sentence_and_nothing_is_opened_to_tell(spec):
    tokenisers.check("marian:Helsinki-NLP/opus-mt-de-en/source.spm")
    assert not tokenisers.needs_fitting("marian:Helsinki-NLP/opus-mt-de-en/target.spm")
    for act in (tokenisers.check, tokenisers.make):
        with pytest.raises(UsageError, match=r"write marian:FOLDER/source\.spm or marian:FOLDER/target\.spm"):
            act(spec)


@pytest.mark.parametrize(
    ("file", "content", "sentence"),
    [
        ("source.spm", b"no model", r"sentencepiece cannot read this model"),
        ("vocab.json", b"{", r"vocab.json is damaged \("),
        ("vocab.json", b"[1]", r"vocab.json is damaged \(no object"),
        ("vocab.json", b'{"a": "b"}', r"must be a JSON object of pieces and their ids"),
        ("vocab.json", b'{"</s>": 0, "a": 1}', r"must have <pad>, <unk>, but this one does not"),
    ],
)
def test_damaged_files_are_one_sentence(tmp_path, published, file, content, sentence):
    for name, spm in published[1].items():
        (tmp_path / name).write_bytes(spm)
    (tmp_path / "vocab.json").write_text(json.dumps(published[2]))
    (tmp_path / file).write_bytes(content)
    with pytest.raises(UsageError, match=sentence) as error:
        tokenisers.make(f"marian:{tmp_path}/source.spm")
    assert str(tmp_path) in str(error.value)
    (tmp_path / "source.spm").unlink()
    with pytest.raises(UsageError, match=r"has no source\.spm"):
        tokenisers.make(f"marian:{tmp_path}/source.spm")


def test_damaged_json_is_one_sentence(side):
    fields = json.loads(side[0].dumps())
    for changes in ({"spm": "!"}, {"spm": 3}):
        with pytest.raises(UsageError, match="This is not a Marian tokeniser"):
            tokenisers.loads(json.dumps(fields | changes))
