"""plm_jax: pre-trained language models in JAX, from raw text to a checkpoint that others can load."""
import os

# TensorFlow only reads data here; what it prints about its own build when imported would bury the run's first lines.
os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '2')
os.environ.setdefault('TF_ENABLE_ONEDNN_OPTS', '0')
