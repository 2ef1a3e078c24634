"""GPT-2, Llama and its descendants without transformers: `tests/parity` compares the logits with theirs."""

import json
import math

import pytest
from safetensors.numpy import load_file

from attention import UsageError
from models.mechanisms import resolve
from models.published import decoders, pretrained
from models.published.hugging_face import CONFIG, SAFETENSORS
from tests.models.published.families import DECODERS, describe, export, load


def test_a_file_has_no_fields_that_only_other_families_read(tmp_path):
    """With types of layers, `transformers` makes masks that Llama refuses in a cache of fixed size."""
    export(tmp_path, "llama")
    theirs = json.loads((tmp_path / CONFIG).read_text())
    assert {"attention_bias", "mlp_bias"} <= theirs.keys()  # which Llama reads
    assert not {"layer_types", "sliding_window", "query_pre_attn_scalar", "final_logit_softcapping"} & theirs.keys()


@pytest.mark.parametrize(
    ("kind", "older", "windows"),
    [
        ("gemma3_text", {}, [3, 3, 3, 3, 3, 0, 3]),
        ("gemma3_text", {"sliding_window_pattern": 2}, [3, 0, 3, 0, 3, 0, 3]),
        ("qwen2", {"sliding_window": 4}, [0] * 7),
        ("qwen2", {"sliding_window": 4, "use_sliding_window": True, "max_window_layers": 5}, [0, 0, 0, 0, 0, 4, 4]),
    ],
)
def test_older_files_do_not_say_which_layers_slide(kind, older, windows, tmp_path):
    export(tmp_path, kind)
    missing = dict.fromkeys(("layer_types", "use_sliding_window"), ...)
    describe(tmp_path, missing | {"num_hidden_layers": 7} | older)
    fields = pretrained.describe(str(tmp_path)).fields
    assert [row.window for row in resolve(fields["attention"], 7)] == windows


LLAMA_3 = {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 16}
LLAMA_3 |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}


@pytest.mark.parametrize(
    ("rope", "message"),
    [
        (
            {"rope_type": "llama3"},
            "without factor, original_max_position_embeddings, low_freq_factor, high_freq_factor",
        ),
        (LLAMA_3 | {"low_freq_factor": 0}, "options must be numbers above 0"),
        ({"rope_theta": 0}, "options must be numbers above 0"),
        ({"rope_theta": True}, "options must be numbers above 0"),
    ],
)
def test_rotary_positions_need_all_their_numbers(rope, message):
    """None is taken for one that is off."""
    with pytest.raises(UsageError, match=message):
        decoders.rotary_spec(rope)


TYPES = {"F8_E4M3": 1, "I64": 8}  # bytes of a number


@pytest.mark.parametrize("kind", TYPES)
def test_weights_that_are_no_plain_floats_are_refused(tmp_path, kind):
    config, params = export(tmp_path, "llama")
    write_zeros(tmp_path / SAFETENSORS, {name: x.shape for name, x in load_file(tmp_path / SAFETENSORS).items()}, kind)
    with pytest.raises(UsageError, match=r"numbers of type \w+; give the model in (bfloat16 or )?float32\."):
        pretrained.load(str(tmp_path), config, params)


def write_zeros(path, shapes, kind):
    """Writes the format by hand, since NumPy has not all of its types."""
    head, end = {}, 0
    for name, shape in shapes.items():
        start, end = end, end + TYPES[kind] * math.prod(shape)
        head[name] = {"dtype": kind, "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(head).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(end))


def test_the_wide_keys_of_mamba_are_no_heads_of_dot_products(tmp_path):
    export(tmp_path, "mamba2", attention=DECODERS["mamba2"]["attention"].replace("state=6", "state=16"))
    _, report = load(tmp_path, "mamba2", attention="dot_product")
    assert report.regrouped == ()
    assert {path.split("/")[2] for path in report.carried} == {"out", "value"}
