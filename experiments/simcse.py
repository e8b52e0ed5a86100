"""python -m experiments.simcse --init=FOLDER --train=SENTENCES.txt --dev=STSB.tsv: sentence vectors without labels.

A sentence and itself, with another dropout, against the others of its batch (Gao et al. 2021): the first token,
temperature 0.05, one epoch of batches of 64, measured 125 times. BERT-base reaches 76.25 on average over the seven STS
sets with a million sentences of Wikipedia (from memory). --task=simcse_nli learns from pairs with classes instead: what
a sentence entails, what contradicts it being a hard negative. --scale=laptop takes what every machine has.
"""
from plm_jax.cli.finetune import start

if __name__ == '__main__':
  start('simcse', about=__doc__ or '')
