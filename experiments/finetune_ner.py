"""Fine-tune on named-entity recognition, CoNLL-2003: `python -m experiments.finetune_ner`.

    python -m experiments.finetune_ner --init=FOLDER

The metric is F1 of whole entities. --objective.context=document gives a sentence its neighbors;
BERT's 92.4 (base) and 92.8 (large) on the test set (both from memory) need them. With single
sentences, all publications report 90 to 91.7. Data comes from TFDS, or from --train and --dev with
one word per line. --task=wikigold, btc, weibo and msra are other corpora; pos is part-of-speech
tagging, by accuracy.
"""
from plm_jax.cli.finetune import start

if __name__ == '__main__':
  start('conll2003', about=__doc__ or '')
