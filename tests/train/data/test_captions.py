"""Images with captions: tables of files, batches, and mistakes."""

import csv

import pytest
from PIL import Image

from attention import UsageError
from train.data.captions import CaptionData


def write(folder):
    """Writes a table of 12 pictures of one colour each, with two captions per picture that say the colour's number."""
    with (folder / "captions.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["photo", "says"])
        for number in range(12):
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
        eval_batch_size=4,
        target_length=12,
    )


def test_slices_keep_the_captions_of_an_image_together_and_images_stay_with_them(tmp_path):
    data = write(tmp_path)
    corpus = data.load()
    examples, seen = data.examples(corpus), {}
    unknown = corpus.tokeniser.decode(corpus.tokeniser.encode("12345"))  # so are words that training lacks
    for part, captions in examples.items():
        rows = [captions.evaluate(number) for number in range(len(captions))]
        numbers = [round(float(row["image"][0, 0, 0]) * 25.5) for row in rows]
        texts = [corpus.tokeniser.decode(row["targets"][: int(row["weight"].sum())]) for row in rows]
        assert all(text.split()[2] in (str(n), unknown) for n, text in zip(numbers, texts, strict=True))
        seen[part] = set(numbers)
    assert all(seen.values())
    assert not seen["train"] & (seen["test"] | seen["validation"])
    assert sum(captions.too_long for captions in examples.values()) == sum(6 + n + 1 > 12 for n in range(12))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"target_tokeniser": "words()"}, r"words\(marks=True\)"),
        ({"target_length": 1}, "0 captions of data.train_split fit in data.target_length=1, but 1"),
        ({"image_shape": "8x8x1"}, "the data have 16x40x1"),
        ({"train_transforms": "resize(size=8)"}, "must have one size"),
    ],
)
def test_mistakes_are_one_sentence(changes, message):
    def load():
        data = CaptionData(train_split="test", **changes)  # a fifth of `train`
        corpus = data.load()
        data.examples(corpus)
        data.shape(corpus)

    with pytest.raises(UsageError, match=message):
        load()


def test_a_caption_must_have_words(tmp_path):
    data = write(tmp_path)
    table = tmp_path / "captions.csv"
    table.write_text(table.read_text().replace("this is 2", "  "))
    with pytest.raises(UsageError, match="has an empty target beside the image"):
        data.load()
