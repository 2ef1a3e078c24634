"""The harness lm-eval on a run: its numbers against sums over the model's own logits."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models.gpt import GPTConfig
from models.published import pretrained
from tests.models.small import random_params, small
from train import generate
from train.data.tokenisers.base import ByteTokeniser
from train.decode.continuations import continuations
from train.decode.language_models import LanguageModel, start_of
from train.generation.sampling import Sampling


def drawn(config):
    """A GPT of bytes with drawn parameters, whose context is 8 tokens."""
    model = config.build(ByteTokeniser.size, 8)
    params = random_params(model, jnp.zeros((1, 1), jnp.int32))["params"]
    return LanguageModel(model, params, ByteTokeniser(), 8, -1, start_of(ByteTokeniser()), "")


@pytest.fixture(scope="module")
def language():
    return drawn(small(GPTConfig, name="gpt", attention="dot_product", tied_output=True, scale_embeddings=False))


def logits_of(language, tokens):
    """One program for all lengths: what comes after changes nothing before it."""
    padded = np.zeros((1, 8), np.int32)
    padded[0, : len(tokens)] = tokens
    return np.asarray(jax.jit(language.model.apply)({"params": language.params}, padded))[0, : len(tokens)]


def by_hand(language, tokens, count):
    """The log-probability of the last tokens, and whether they are the greedy ones."""
    logits = logits_of(language, tokens[:-1]).astype(np.float64)
    logs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    places = np.arange(len(tokens) - 1)[-count:]
    return logs[places, tokens[-count:]].sum(), bool((logits[places].argmax(-1) == tokens[-count:]).all())


def test_scores_are_sums_over_the_logits_whatever_else_is_in_the_batch(language):
    draw = np.random.default_rng(0)
    rows = [
        (draw.integers(0, 256, length).astype(np.int32), count) for length, count in ((9, 3), (2, 1), (5, 4), (9, 8))
    ]
    best = logits_of(language, rows[0][0][:4])[-1].argmax()
    rows.append((np.append(rows[0][0][:4], best).astype(np.int32), 1))
    found = language.scores(rows)
    for (score, greedy), row in zip(found, rows, strict=True):
        expected = by_hand(language, *row)
        assert score == pytest.approx(expected[0], abs=1e-4)
        assert greedy == expected[1]
    assert found[-1][1]


def test_a_published_folder_is_a_language_model_that_answers_without_a_run(tmp_path, capsys, refused):
    config = GPTConfig(
        depth=1, width=16, heads=2, mlp=16, positions="learned", attention_bias=True, activation="gelu_tanh"
    )
    same, folder = drawn(config), str(tmp_path / "gpt2")
    settings = json.dumps({"chat_template": "<{{ messages[0]['content'] }}>"})
    texts = {"tokenizer.json": ByteTokeniser().dumps(), "tokenizer_config.json": settings}
    pretrained.export(folder, config, same.params, {"end": 259}, 8, lambda architecture: texts)
    language = LanguageModel.of(folder)
    assert (language.context, language.published) == (8, folder)
    greedy = ["--tokens=3", "--temperature=0"]
    assert generate.main([f"--published={folder}", "--chat", "--prompt=ab", *greedy]) == 0
    whole = continuations(same, ["<ab>"], 3, Sampling(0.0))[0]
    assert capsys.readouterr().out == f"{whole.removeprefix('<ab>')}\n"
    assert generate.main([f"--published={folder}", "--prompt=<ab>", *greedy]) == 0
    assert capsys.readouterr().out == f"{whole}\n"
    assert "leave out --step and --replica" in refused(
        generate.main, [f"--published={folder}", "--prompt=a", "--step=last"]
    )


def test_the_harness_runs_a_task_made_here(language, monkeypatch, tmp_path):
    pytest.importorskip("lm_eval", reason="needs lm_eval: pip install -r requirements-harness.txt")
    from lm_eval.evaluator import simple_evaluate
    from lm_eval.tasks import TaskManager

    from train.decode.harness import HarnessModel

    monkeypatch.setattr(LanguageModel, "of", lambda place: language)
    (tmp_path / "data.jsonl").write_text('{"q": "ab", "a": " c", "b": " d", "gold": 0}\n')
    common = {"dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(tmp_path / "data.jsonl")}}}
    common |= {"test_split": "test", "doc_to_text": "{{q}}", "target_delimiter": ""}
    kinds = {
        "choice": {"output_type": "multiple_choice", "doc_to_choice": "{{[a, b]}}", "doc_to_target": "gold"},
        "rolling": {"output_type": "loglikelihood_rolling", "doc_to_text": "", "doc_to_target": "{{q}} and much more"},
        "writes": {
            "output_type": "generate_until",
            "doc_to_target": "{{a}}",
            "generation_kwargs": {"until": ["\n"], "max_gen_toks": 3},
        },
    }
    metrics = {"choice": "acc", "rolling": "word_perplexity", "writes": "exact_match"}
    tasks = [
        common | {"task": name, "metric_list": [{"metric": metrics[name]}]} | options for name, options in kinds.items()
    ]
    manager = TaskManager(include_defaults=False)
    done = simple_evaluate(HarnessModel("here"), tasks=tasks, task_manager=manager, bootstrap_iters=0)
    responses = {name: done["samples"][name][0]["resps"] for name in kinds}
    encode = language.tokeniser.encode
    for (given,), ending in zip(responses["choice"], (" c", " d"), strict=True):
        assert float(given[0]) == pytest.approx(by_hand(language, encode(f"ab{ending}"), 2)[0], abs=1e-4)
    text = np.concatenate([[language.first], encode("ab and much more")]).astype(np.int32)
    sums = by_hand(language, text[:9], 8)[0] + by_hand(language, text[8:], 8)[0]
    assert float(responses["rolling"][0][0]) == pytest.approx(sums, abs=1e-3)
    assert isinstance(responses["writes"][0][0], str)
