"""Train sentence vectors without labels, SimCSE: `python -m experiments.simcse`.

    python -m experiments.simcse --init=FOLDER --train=SENTENCES.txt --dev=STSB.tsv

A sentence with two dropout masks is a positive pair, and the other sentences of its batch are
negatives (Gao et al. 2021). The vector is that of the first token; temperature 0.05, one epoch with
batch size 64, 125 evaluations. BERT-base reaches 76.25 on average over the seven STS sets with a
million sentences of Wikipedia (from memory). --task=simcse_nli learns from labeled pairs instead:
entailed sentences are positives and contradictions are hard negatives. --scale=laptop uses built-in
data.
"""
from plm_jax.cli.finetune import start

if __name__ == '__main__':
  start('simcse', about=__doc__ or '')
