"""plm_jax: pre-trained language models in JAX, from raw text to a checkpoint that others can load."""
import importlib.metadata
import os

# TensorFlow only reads data here; what it prints about its own build when imported would bury the run's first lines.
os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '2')
os.environ.setdefault('TF_ENABLE_ONEDNN_OPTS', '0')

# jaxlib 0.10 computes wrongly, now and then, what it has fused for the CPU, unless that is a product: a vmapped
# pullback of attention was off by more than its size. 0.12 is right. Products on their own are what is fast.
FUSIONS = '--xla_cpu_experimental_ynn_fusion_type'
if importlib.metadata.version('jaxlib').startswith('0.10.') and FUSIONS not in os.environ.get('XLA_FLAGS', ''):
  os.environ['XLA_FLAGS'] = f'{os.environ.get("XLA_FLAGS", "")} {FUSIONS}=LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT'.strip()
