"""python -m experiments.finetune_ner --init=FOLDER: named entities, CoNLL-2003, by F1 of whole entities.

--objective.context=document gives a sentence its neighbours: BERT's 92.4 (base) and 92.8 (large) on the test set, which
are from memory, need them; on single sentences everybody reports 90 to 91.7. Data comes from TFDS, or from --train and
--dev, a word a line. --task=wikigold, btc, weibo and msra are other corpora; pos is of parts of speech, by accuracy.
"""
from plm_jax.cli.finetune import start

if __name__ == '__main__':
  start('conll2003', about=__doc__ or '')
