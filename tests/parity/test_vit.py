"""Our ViT against transformers': the same logits of images from the same weights, in and out."""

import jax.numpy as jnp
import numpy as np
import pytest

from models.published import pretrained
from models.vit import ViTConfig
from tests.parity.close import assert_close, load_ours, logits_of, noisy, reloaded, transformers

SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 24}
SIZES |= {"image_size": 12, "patch_size": 4, "num_labels": 5}
IMAGES = np.random.default_rng(0).normal(size=(3, 12, 12, 3)).astype(np.float32)


@pytest.mark.parametrize("channels", [3, 1])
def test_logits_are_equal_and_an_export_loads(tmp_path, channels):
    config, images = transformers.ViTConfig(**SIZES, num_channels=channels), IMAGES[..., :channels]
    theirs = noisy(lambda: transformers.ViTForImageClassification(config), 0.1)
    theirs.save_pretrained(tmp_path / "theirs")
    sizes = lambda described: (images.shape[1:], described.vocabulary)  # noqa: E731
    model, params, report = load_ours(tmp_path / "theirs", ViTConfig, sizes, images)
    assert (report.new, report.skipped, report.cut) == ((), (), ())
    expected = logits_of(theirs, images.transpose(0, 3, 1, 2))
    assert_close(model.apply(params, jnp.asarray(images)), expected, "ViT")
    pretrained.export(str(tmp_path / "ours"), model.config, params["params"])
    again = reloaded(theirs, tmp_path / "ours")
    np.testing.assert_allclose(logits_of(again, images.transpose(0, 3, 1, 2)), expected, atol=1e-6)
