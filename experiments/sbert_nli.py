"""python -m experiments.sbert_nli --init=FOLDER: sentence vectors from natural language inference, measured on STS-B.

SNLI and MultiNLI, a layer on (u, v, |u - v|), mean pooling, one epoch of batches of 16 (Reimers and Gurevych 2019,
section 3.1): BERT-base reaches a Spearman of 77.03 on the test set of STS-B, its vectors as they were pre-trained
46.35, averaged GloVe 58.02. Data comes from TFDS, or from --train and --dev; --scale=laptop takes what every machine
has.
"""
from plm_jax.cli.finetune import start

if __name__ == '__main__':
  start('sbert_nli', about=__doc__ or '')
