"""Marian tokenisers against sentencepiece itself; `tests/parity` compares it with transformers' own."""

import io
import json
import shutil

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
    pieces = ["</s>", "<unk>", ">>fr<<"]
    for name, spm in {"source.spm": train(GERMAN, 60), "target.spm": train(ENGLISH, 55)}.items():
        (folder / name).write_bytes(spm)
        processor = sentencepiece.SentencePieceProcessor(model_proto=spm)
        pieces += sorted(processor.id_to_piece(i) for i in range(3, processor.vocab_size()))
    pieces = list(dict.fromkeys(pieces))
    pieces.remove("!")  # a piece that the vocabulary does not have
    (folder / "vocab.json").write_text(json.dumps({piece: i for i, piece in enumerate([*pieces, "<pad>"])}))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("marian")
    write(folder)
    return folder


@pytest.fixture(scope="module")
def vocabulary(folder):
    return json.loads((folder / "vocab.json").read_text())


@pytest.fixture(scope="module")
def source(folder):
    return tokenisers.make(f"marian:{folder}/source.spm")


def test_ids_are_the_vocabularys_of_sentencepieces_pieces(source, folder, vocabulary):
    processor = sentencepiece.SentencePieceProcessor(model_proto=(folder / "source.spm").read_bytes())
    for text in TEXTS:
        language, rest = ([text[:6]], text[6:]) if text.startswith(">>") else ([], text)
        pieces = [*language, *processor.encode(rest, out_type=str)]
        expected = [vocabulary.get(piece, vocabulary["<unk>"]) for piece in pieces]
        assert source.encode(text).tolist() == expected
    assert source.encode(">>fr<< x")[0] == vocabulary[">>fr<<"]
    assert source.encode(">>xx<< x")[0] == vocabulary["<unk>"]


def test_both_sides_share_ids_but_cut_their_own_pieces(source, folder, vocabulary):
    target = tokenisers.make(f"marian:{folder}/target.spm")
    assert source.size == target.size == len(vocabulary)
    assert source.special == target.special
    assert source.special == {"pad": len(vocabulary) - 1, "unknown": 1, "end": 0, "start": len(vocabulary) - 1}
    assert len(source.encode(GERMAN[0])) < len(target.encode(GERMAN[0]))


def test_texts_come_back_without_marks_and_no_text_turns_into_marks(source):
    ids = source.encode(GERMAN[0])
    marks = [source.special[name] for name in ("start", "unknown", "end", "pad")]
    assert source.decode([marks[0], *ids, *marks[1:]]) == source.decode(ids) == GERMAN[0]
    assert source.decode([]) == source.decode(marks) == ""
    for text in ("</s>", "<pad>", "a <pad> b</s>", ">></s><< c"):
        assert not {source.special["pad"], source.special["end"]} & set(source.encode(text).tolist())


def test_json_comes_back_unless_it_is_damaged(source):
    copy = tokenisers.loads(source.dumps())
    assert (copy.dumps(), copy.size, copy.special) == (source.dumps(), source.size, source.special)
    with pytest.raises(UsageError, match="This is not a Marian tokeniser"):
        tokenisers.loads(json.dumps(json.loads(source.dumps()) | {"spm": "!"}))


def test_nothing_is_opened_to_tell_whether_a_name_is_one():
    tokenisers.check("marian:Helsinki-NLP/opus-mt-de-en/source.spm")
    assert not tokenisers.needs_fitting("marian:Helsinki-NLP/opus-mt-de-en/target.spm")


@pytest.mark.parametrize(
    ("file", "content", "sentence"),
    [
        ("source.spm", b"no model", r"sentencepiece cannot read this model"),
        ("source.spm", None, r"has no source\.spm"),
        ("vocab.json", b"{", r"vocab.json is damaged \("),
        ("vocab.json", b'{"a": "b"}', r"must be a JSON object of pieces and their ids"),
        ("vocab.json", b'{"</s>": 0, "a": 1}', r"must have <pad>, <unk>, but this one does not"),
    ],
)
def test_damaged_files_are_one_sentence(tmp_path, folder, file, content, sentence):
    shutil.copytree(folder, tmp_path / "damaged")
    (tmp_path / "damaged" / file).unlink()
    if content:
        (tmp_path / "damaged" / file).write_bytes(content)
    with pytest.raises(UsageError, match=sentence):
        tokenisers.make(f"marian:{tmp_path}/damaged/source.spm")
