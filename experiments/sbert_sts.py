"""python -m experiments.sbert_sts --init=FOLDER: sentence vectors from scored pairs, STS-B.

Cosines against scores by the squared error, mean pooling, four epochs of batches of 16 (Reimers and Gurevych 2019,
section 4.2): BERT-base reaches a Spearman of 84.67 on the test set, 85.35 where it has learned sbert_nli before (both
from memory). Data comes from TFDS, or from --train and --dev; --scale=laptop takes what every machine has.
"""
from plm_jax.cli.finetune import start

if __name__ == '__main__':
  start('sbert_sts', about=__doc__ or '')
