"""plm_jax: pre-trained language models in JAX, from raw text to a checkpoint that others can load."""
from plm_jax import environment as _environment

_environment.settle()
