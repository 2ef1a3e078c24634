"""DiGiugno §4.2: a ViT on CIFAR, neural in one layer.

    python -m train.main --config=configs/vit_cifar_neural.py --config.data.data_dir=DIR
    python -m train.main --config=configs/vit_cifar_neural.py:dot_product --config.data.source=tfds:cifar100

Tables 3, 4, 7 and 8 of the paper. The argument is an attention mechanism. From the paper and its code: 12 post-norm
layers, width 768, 8 heads, MLP 1024, ReLU, class token, sinusoidal positions, images of 224x224, patch 8 (ℓ = 785),
d' = 3, AdamW, β 0.9 and 0.95, decay 0.1, clip 1, dropout 0.1 but none on attention weights, batch 32, 350 epochs. The
paper's learning rate is 5e-5 for the first 4 epochs and 2.5e-5 for the other 346; here it is 2.5e-5 throughout. Ours:
the split, warm-up and normalisation.
"""

from configs import defaults

NORMALISE = "resize(size=224)|normalise(mean=(0.491, 0.482, 0.447), std=(0.247, 0.243, 0.262))"


def get_config(attention: str = "neural(dim=3)|dot_product"):
    """ViT of 12 blocks, width 768, on 784 patches of 8x8 pixels and a class token (ℓ = 785)."""
    config = defaults.image_classification()
    config.model.update(attention=attention, depth=12, width=768, heads=8, mlp=1024, patch=8, pool="class_token")
    config.model.update(norm="post", norm_epsilon=1e-5, positions="sinusoidal", activation="relu")
    config.model.update(embedding_dropout=0.1, attention_dropout=0.0, attention_bias=False)
    config.data.update(source="tfds:cifar10", classes=10, image_shape="32x32x3", workers=2)
    config.data.update(train_split="train[:90%]", validation_split="train[90%:]", batch_size=32)
    config.data.update(eval_batch_size=32, train_transforms=NORMALISE, eval_transforms=NORMALISE)
    config.optimizer.update(learning_rate=2.5e-5, schedule="constant", beta2=0.95, weight_decay=0.1)
    config.train.update(length="350 epochs", checkpoint_every="1 epoch")
    return config
