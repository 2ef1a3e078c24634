"""Images with captions: tables of files, batches, and mistakes."""

import csv
import dataclasses

import pytest
from PIL import Image

from attention import UsageError
from train.data.captions import CaptionData


@pytest.fixture(autouse=True, scope="module")
def cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ATTENTION_BENCH_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def write(folder, rows=12):
    """Writes a table of pictures of one colour each, with two captions per picture that say the colour's number."""
    with (folder / "captions.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["photo", "says"])
        for number in range(rows):
            path = folder / f"{number}.png"
            Image.new("RGB", (10, 6), (10 * number, 0, 200)).save(path)
            table.writerows([(path, f"this is {number}"), (path, f"it shows {number} indeed or so" + " x" * number)])
    return CaptionData(
        source=f"file:{folder / 'captions.csv'}",
        image_shape="4x4x3",
        image_key="photo",
        target_column="says",
        train_split="train[:50%]",
        validation_split="train[50%:75%]",
        test_split="train[75%:]",
        batch_size=4,
        eval_batch_size=4,
        target_length=16,
    )


def read(examples, tokeniser, batches):
    found = []
    for batch in batches:
        for image, targets, weight, index in zip(
            *(batch[n] for n in ("image", "targets", "weight", "index")), strict=True
        ):
            if index >= 0:
                text = tokeniser.decode(targets[: int(weight.sum())])
                found.append((round(float(image[0, 0, 0]) * 25.5), text))
    return found


def test_slices_keep_the_captions_of_an_image_together_and_images_stay_with_them(tmp_path):
    data = write(tmp_path)
    corpus = data.load()
    examples, seen = data.examples(corpus), {}
    for part, captions in examples.items():
        pairs = read(captions, corpus.tokeniser, captions.eval_batches())
        assert len(pairs) == len(captions) > 0
        unknown = corpus.tokeniser.decode(corpus.tokeniser.encode("12345"))
        for number, text in pairs:
            said = text.split()[2]
            assert said in (str(number), unknown.strip())  # words that training lacks are unknown
        seen[part] = {number for number, _ in pairs}
    assert not seen["train"] & seen["test"]
    assert not seen["train"] & seen["validation"]
    assert sum(examples[part].too_long for part in examples) == sum(6 + n + 1 > 16 for n in range(12))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train_split": "training"}, "Valid: test, train, validation"),
        ({"target_tokeniser": "words()"}, r"words\(marks=True\)"),
        ({"target_length": 1}, "0 captions of data.train_split fit in data.target_length=1, but 1"),
        ({"image_shape": "8x8x1"}, "the data have 16x40x1"),
    ],
)
def test_mistakes_are_one_sentence(changes, message):
    def load():
        data = CaptionData(**changes)
        return data.examples(data.load())

    with pytest.raises(UsageError, match=message):
        load()


def test_images_must_have_one_size_in_training_and_evaluation():
    data = CaptionData(train_transforms="resize(size=8)")
    with pytest.raises(UsageError, match="must have one size"):
        data.shape(data.load())


def test_content_is_that_of_captions_and_images(tmp_path):
    def contents(**changes):
        data = dataclasses.replace(write(tmp_path), **changes)
        return [part.content for part in data.examples(data.load()).values()]

    before = contents()
    assert contents() == before
    assert contents(image_shape="5x5x3") != before
    assert contents(target_tokeniser="bytes", target_length=99) != before


def test_a_caption_must_have_words_and_a_picture_must_be_one(tmp_path):
    data = write(tmp_path, 4)
    table = tmp_path / "captions.csv"
    whole = table.read_text()
    table.write_text(whole.replace("this is 2", "  "))
    with pytest.raises(UsageError, match="has an empty target beside the image"):
        data.load()
    table.write_text(whole)
    (tmp_path / "3.png").write_text("none")
    with pytest.raises(UsageError, match="cannot be read"):
        data.load()
