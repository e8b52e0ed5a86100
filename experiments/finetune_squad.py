"""python -m experiments.finetune_squad --init=FOLDER: answers in contexts, SQuAD 1.1.

--task=squad_v2 has questions without an answer, cmrc2018 and drcd are Chinese, measured by CMRC's script.

Of BERT 3e-5, 2 epochs, batches of 12 (large 24), 384 tokens, windows every 128; data comes from TFDS, or from --train
and --dev, SQuAD's .json.

Published, exact match and F1: BERT base 81.25 and 88.41; BERT large 84.39 and 90.87, of whole words 87.04 and 93.31,
2.0 79.0 and 81.8; RoBERTa large 88.9 and 94.6, 2.0 86.5 and 89.4; ALBERT base (version 2) 83.2 and 90.2.
"""
from plm_jax.cli.finetune import start

if __name__ == '__main__':
  start('squad', about=__doc__ or '')
