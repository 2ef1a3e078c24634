"""Whatever folders hold is read, or told to be damaged in one short sentence: images, archives, published models."""

import functools
import io
import json
import os
import struct
import tempfile
import zlib
from pathlib import Path

import numpy as np
from flax import serialization
from hypothesis import strategies as st
from PIL import Image

from analysis import archive
from models.published import hugging_face, pretrained
from models.published.gpt2 import GPT2
from tests.fuzz.harness import answers, changed, damaged, fuzzed, texts_of
from tests.fuzz.test_files import LINE, RESULT, SWEEP, VOCABULARY, config, reported, subwords, used, write_run
from tests.models.published import families
from train.data import tokenisers
from train.data.images.section import ImageData
from train.decode import export
from train.loading.leaves import flatten


@functools.cache
def kept():
    """An archive of two runs that differ in their seed; one has two replicas."""
    leaves = flatten(config())
    run = {"path": "attention=super/seed0", "config": {"seed": 0}, "results": [RESULT], "record": [LINE]}
    other = run | {"path": "b", "config": {"seed": 3}, "results": [RESULT, RESULT], "record": [LINE | {"replica": 1}]}
    shared = {field: value for field, value in leaves.items() if field != "seed"}
    return {"sweeps": [SWEEP], "config": shared, "runs": [run, other]}


@fuzzed(content=st.deferred(lambda: texts_of(kept())))
def test_archives(place, content):
    (place / "kept.json").write_bytes(content)
    found = answers(archive.read, place / "kept.json")
    answers(reported, [place / "kept.json"])
    if found:
        answers(archive.unpack, found, place / "unpacked")


def written(image, kind, **options):
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width, height):
    """A PNG that claims a size, and holds next to nothing."""
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(b"\0" * 9)) + chunk(b"IEND", b"")


@functools.cache
def images():
    """Images of many kinds by their suffix, some of which Pillow cannot read or should not."""
    plain = {mode: Image.new(mode, (5, 4)) for mode in ("L", "RGB", "RGBA", "LA", "P", "1", "CMYK", "I;16", "F", "I")}
    moving = written(plain["P"], "GIF", save_all=True, append_images=[Image.new("P", (5, 4), 7)])
    modes = {f"{mode}.png": written(plain[mode], "PNG") for mode in ("L", "RGB", "RGBA", "LA", "P", "1", "I;16")}
    modes |= {f"{mode}.tif": written(plain[mode], "TIFF") for mode in ("CMYK", "I;16", "F", "I", "LA")}
    modes |= {"RGB.jpg": written(plain["RGB"], "JPEG"), "CMYK.jpg": written(plain["CMYK"], "JPEG"), "a.gif": moving}
    modes |= {"a.webp": written(plain["RGBA"], "WEBP"), "a.bmp": written(plain["RGB"], "BMP"), "empty.png": b""}
    large = {f"{w}x{h}.png": png(w, h) for w, h in ((30_000, 30_000), (2**31 - 1, 2**31 - 1), (0, 0), (1, 2**30))}
    return modes | large | {"text.png": b"hello", "a.svg": b"<svg/>", "a.eps": b"%!PS-Adobe-3.0 EPSF-3.0\n"}


NAMES = st.one_of(
    st.sampled_from(
        [b"caf\xe9", b"\xff\xfe", b"a b", b"<script>", b"line\nbreak", b"\x1b[31m", b"x" * 200, b"-0", b"."]
    ),
    st.sampled_from([b"train", b"val", b"test", b"0", b"1", b"007", "é".encode(), "e\u0301".encode()]),
    st.binary(min_size=1, max_size=4).filter(lambda name: not {0, ord("/")} & set(name) and name not in (b".", b"..")),
)
FILES = st.sampled_from(sorted(images())).flatmap(
    lambda name: st.tuples(
        st.just(os.fsencode(name)) | NAMES.map(lambda start: start + Path(name).suffix.encode()),
        st.just(images()[name]) | damaged(images()[name]),
    )
)


def looked_at(place, shape):
    data = ImageData(source=f"folder:{place}/of", image_shape=shape, classes=0, cache_dir=f"{place}/cache")
    examples = data.load()["train"]
    return examples.evaluate(0), len(examples), examples.split.class_names


@fuzzed(
    folders=st.dictionaries(NAMES, st.lists(FILES, max_size=3), min_size=1, max_size=3),
    around=st.sampled_from([b"", b"train", b"caf\xe9"]),
    shape=st.sampled_from(["", "8x8x3", "4x2x1", "1x1x4"]),
)
def test_folders_of_images(place, folders, around, shape):
    for name, files in folders.items():
        folder = os.path.join(os.fsencode(place), b"of", around, name)
        os.makedirs(folder, exist_ok=True)
        for file, content in files:
            path = os.path.join(folder, file[-250:])
            if not os.path.isdir(path):
                Path(os.fsdecode(path)).write_bytes(content)
    answers(looked_at, place, shape)


@functools.cache
def llama():
    return families.build("llama")


@functools.cache
def published():
    """The files of a small Llama by their names, its weights in one shard."""
    with tempfile.TemporaryDirectory() as folder:
        pretrained.export(folder, *llama(), length=families.LENGTH)
        files = {file.name: file.read_bytes() for file in Path(folder).iterdir()}
    files["shard.safetensors"] = weights = files.pop(hugging_face.SAFETENSORS)
    names = [name for name in head_of(weights) if name != "__metadata__"]
    files[hugging_face.SHARDS] = json.dumps({"weight_map": dict.fromkeys(names, "shard.safetensors")}).encode()
    return files


def head_of(weights):
    return json.loads(weights[8 : 8 + int.from_bytes(weights[:8], "little")])


@st.composite
def safetensors(draw):
    """Weights with another head, or with damaged bytes."""
    weights = published()["shard.safetensors"]
    head = json.dumps(draw(changed(head_of(weights)))).encode()
    rest = weights[8 + int.from_bytes(weights[:8], "little") :]
    return draw(st.just(len(head).to_bytes(8, "little") + head + rest) | damaged(weights))


@fuzzed(data=st.data(), name=st.sampled_from(["config.json", hugging_face.SHARDS, "shard.safetensors"]))
def test_published_models(place, data, name):
    files = published()
    other = safetensors() if name.endswith("safetensors") else texts_of(json.loads(files[name]))
    for file, content in (files | {name: data.draw(other)}).items():
        (place / file).write_bytes(content)
    if answers(pretrained.describe, str(place)):
        answers(pretrained.load, str(place), *llama())


TREE = {"h": {"0": {"kernel": np.zeros((2, 3), np.float32), "bias": np.zeros(3)}}, "scale": np.ones(2)}


@fuzzed(content=damaged(serialization.msgpack_serialize(TREE)))
def test_other_weights(place, content):
    (place / hugging_face.MSGPACK).write_bytes(content)
    answers(hugging_face.read_weights, str(place))


DATA = {split: {"examples": 8, "content": "0a1b"} for split in ("train", "validation", "test")}


@fuzzed(content=texts_of(DATA), result=st.just(json.dumps(RESULT).encode()) | texts_of(RESULT))
def test_model_cards(place, content, result):
    write_run(place, result=result)
    (place / "data.json").write_bytes(content)
    answers(export.card, place, GPT2, 40, 0, 1000)


@fuzzed(data=st.data(), vocabulary=texts_of(VOCABULARY | {"a": 3}))
def test_tokenisers_in_folders(place, data, vocabulary):
    (place / "source.spm").write_bytes(data.draw(st.binary(max_size=50) | damaged(b"\n\x03a")))
    (place / "vocab.json").write_bytes(vocabulary)
    answers(tokenisers.make, f"marian:{place}/source.spm")
    (place / "tokenizer.json").write_bytes(data.draw(damaged(json.dumps(subwords()).encode())))
    answers(used, place)
