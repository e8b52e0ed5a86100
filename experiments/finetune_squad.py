"""Fine-tune on extractive question answering, SQuAD 1.1: `python -m experiments.finetune_squad`.

    python -m experiments.finetune_squad --init=FOLDER

--task=squad_v2 has questions without an answer; cmrc2018 and drcd are Chinese, and evaluated by
CMRC's script. For BERT the settings are learning rate 3e-5, 2 epochs, batch size 12 (large 24),
sequence length 384, and a window every 128 tokens. Data comes from TFDS, or from SQuAD's .json with
--train and --dev.

Published, exact match and F1: BERT base 81.25 and 88.41; BERT large 84.39 and 90.87, with whole-
word masking 87.04 and 93.31, on SQuAD 2.0 79.0 and 81.8; RoBERTa large 88.9 and 94.6, on 2.0 86.5
and 89.4; ALBERT base (version 2) 83.2 and 90.2.
"""
from plm_jax.cli.finetune import start

if __name__ == '__main__':
  start('squad', about=__doc__ or '')
