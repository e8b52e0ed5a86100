"""Train sentence vectors on pairs with similarity scores, STS-B: `python -m experiments.sbert_sts`.

    python -m experiments.sbert_sts --init=FOLDER

Cosine similarities are fitted to the scores by squared error, with mean pooling, for four epochs
with batch size 16 (Reimers and Gurevych 2019, section 4.2). BERT-base reaches a Spearman
correlation of 84.67 on the test set, and 85.35 after sbert_nli (both from memory). Data comes from
TFDS, or from --train and --dev; --scale=laptop uses built-in data.
"""
from plm_jax.cli.finetune import start

if __name__ == '__main__':
  start('sbert_sts', about=__doc__ or '')
