"""A Llama of 100 M parameters against `transformers`: decoding with a cache, and a training step."""
