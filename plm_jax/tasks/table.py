"""Downstream tasks by name, as data: what is read, what the classes are called and in which order, how it is measured.

    TASKS['mnli'].labels    ('entailment', 'neutral', 'contradiction')

The order of the names is that of the numbers in the published files, so that a model of transformers for the task has
the same id2label: of GLUE and SuperGLUE that of TFDS and of Hugging Face's datasets, of CLUE that of the latter.
"""
import dataclasses
from typing import Literal

from plm_jax.tasks.forms import Cut
from plm_jax.tasks.reading import Columns, Kind


@dataclasses.dataclass(frozen=True)
class Published:
  """A task of the field."""

  kind: Kind
  columns: Columns = Columns()
  """where the usual names are not its own"""
  labels: tuple[str, ...] = ()
  """names of the classes by their numbers; empty: those of the training examples, in the order of their names"""
  measures: tuple[str, ...] = ('accuracy',)
  """names of metrics, by the first of which the best checkpoint is chosen; of tagging 'entities' or 'accuracy'; of
  answers 'f1' and 'exact', which SQuAD's and CMRC's scripts give"""
  data: tuple[str, ...] = ()
  """its sources without their splits, in TFDS; empty: it is not there"""
  splits: tuple[str, ...] = ('validation',)
  """names of those that it is measured on; MNLI has two"""
  measured: tuple[str, ...] = ()
  """sources that it is measured on, where these are of other data"""
  cut: Cut = 'longest'
  """which text loses its end where two are too long for a row"""
  unanswerable: bool = False
  """whether a question may have no answer"""
  script: Literal['squad', 'cmrc'] = 'squad'
  """whose official script measures answers"""

  @property
  def train(self) -> tuple[str, ...]:
    """Sources that are learned from."""
    return tuple(f'{name}:train' for name in self.data)

  @property
  def dev(self) -> tuple[str, ...]:
    """Sources that it is measured on, each by itself."""
    return self.measured or tuple(f'{name}:{split}' for split in self.splits for name in self.data)


LABEL = 'label|gold_label'
ENTAILED = ('entailment', 'not_entailment')
RELATIONS = ('entailment', 'neutral', 'contradiction')
PREMISE = Columns('premise|sentence1', 'hypothesis|sentence2', LABEL)
SENTENCES = Columns('sentence1', 'sentence2', LABEL)
SENTENCE = Columns('sentence|text', label=LABEL)
ENTITIES = ('O', 'B-PER', 'I-PER', 'B-ORG', 'I-ORG', 'B-LOC', 'I-LOC', 'B-MISC', 'I-MISC')

# Wang et al. 2019, GLUE, table 1; of two metrics the mean is the task's score there, and the first chooses here.
GLUE = {
    'cola': Published('classification', SENTENCE, ('unacceptable', 'acceptable'), ('matthews', 'accuracy'),
                      data=('tfds:glue/cola',)),
    'sst2': Published('classification', SENTENCE, ('negative', 'positive'), data=('tfds:glue/sst2',)),
    'mrpc': Published('classification', Columns('sentence1|#1 String', 'sentence2|#2 String', 'label|Quality'),
                      ('not_equivalent', 'equivalent'), ('f1', 'accuracy'), data=('tfds:glue/mrpc',)),
    'stsb': Published('regression', Columns('sentence1', 'sentence2', 'label|score'), (), ('pearson', 'spearman'),
                      data=('tfds:glue/stsb',)),
    'qqp': Published('classification', Columns('question1', 'question2', 'label|is_duplicate'),
                     ('not_duplicate', 'duplicate'), ('f1', 'accuracy'), data=('tfds:glue/qqp',)),
    'mnli': Published('classification', PREMISE, RELATIONS,
                      data=('tfds:glue/mnli',), splits=('validation_matched', 'validation_mismatched')),
    'qnli': Published('classification', Columns('question|sentence1', 'sentence|sentence2', LABEL), ENTAILED,
                      data=('tfds:glue/qnli',)),
    'rte': Published('classification', PREMISE, ENTAILED, data=('tfds:glue/rte',)),
    'wnli': Published('classification', SENTENCES, ENTAILED[::-1], data=('tfds:glue/wnli',)),
}
# Wang et al. 2019, SuperGLUE, table 1. BoolQ's passage is what may lose its end.
SUPERGLUE = {
    'boolq': Published('classification', Columns('question', 'passage', 'label|answer'), ('False', 'True'),
                       cut='second', data=('tfds:super_glue/boolq',)),
    'cb': Published('classification', PREMISE, ('entailment', 'contradiction', 'neutral'), ('accuracy', 'macro_f1'),
                    data=('tfds:super_glue/cb',)),
    'copa': Published('choice', Columns('premise', 'question', 'label', 'choice1,choice2'),
                      data=('tfds:super_glue/copa',)),
    'wic': Published('classification', Columns('word+sentence1', 'sentence2', 'label'), ('False', 'True'),
                     data=('tfds:super_glue/wic',)),
}
# SemEval 2014, task 1 (Marelli et al. 2014): entailment, and relatedness from 1 to 5.
SICK = {
    'sick': Published('classification', Columns('sentence1|sentence_A', 'sentence2|sentence_B',
                                                'entailment|entailment_label|entailment_judgment'), RELATIONS),
    'sick_relatedness': Published('regression', Columns('sentence1|sentence_A', 'sentence2|sentence_B',
                                                        'relatedness|relatedness_score'), (), ('pearson', 'spearman')),
}
# Xu et al. 2020, CLUE, table 1, with the names of the Hugging Face data set; TNEWS has no 105 and 111. Xu et al. 2021,
# FewCLUE: BUSTM and EPRSTMT. THUCNews as 649453932/Chinese-Text-Classification-Pytorch has it, data/class.txt.
CHINESE = {
    'tnews': Published('classification', SENTENCE, tuple(str(n) for n in range(100, 117) if n not in (105, 111))),
    'afqmc': Published('classification', SENTENCES, ('0', '1')),
    'ocnli': Published('classification', SENTENCES, ('neutral', 'entailment', 'contradiction')),
    'bustm': Published('classification', SENTENCES, ('0', '1')),
    'eprstmt': Published('classification', SENTENCE, ('Negative', 'Positive')),
    'chnsenticorp': Published('classification', Columns('sentence|text_a|text', label=LABEL), ('negative', 'positive')),
    'thucnews': Published('classification', SENTENCE, (
        'finance', 'realty', 'stocks', 'education', 'science', 'society', 'politics', 'sports', 'game',
        'entertainment')),
    'stsb_zh': Published('regression', Columns('sentence1', 'sentence2', 'label|score'), (), ('pearson', 'spearman')),
}
# Of WikiGold, BTC and Weibo no order of names is published. Universal Dependencies have 17 classes of words (UPOS).
TAGGING = {
    'conll2003': Published('tagging', Columns('words|tokens', label='tags|ner|ner_tags'), ENTITIES, ('entities',),
                           data=('tfds:conll2003',), splits=('dev',)),
    'wikigold': Published('tagging', labels=ENTITIES, measures=('entities',)),
    'btc': Published('tagging', labels=ENTITIES[:7], measures=('entities',)),
    'weibo': Published('tagging', measures=('entities',)),
    'msra': Published('tagging', labels=ENTITIES[:7], measures=('entities',)),
    'pos': Published('tagging', Columns('words|tokens', label='tags|upos'), (
        'ADJ', 'ADP', 'ADV', 'AUX', 'CCONJ', 'DET', 'INTJ', 'NOUN', 'NUM', 'PART', 'PRON', 'PROPN', 'PUNCT', 'SCONJ',
        'SYM', 'VERB', 'X'), data=('tfds:universal_dependencies/en_ewt',), splits=('dev',)),
}
# Rajpurkar et al. 2016 and 2018; Cui et al. 2019; Shao et al. 2018, measured as CMRC is.
ANSWERS = {
    'squad': Published('answers', measures=('f1', 'exact'), cut='second', data=('tfds:squad',)),
    'squad_v2': Published('answers', measures=('f1', 'exact'), cut='second', unanswerable=True,
                          data=('tfds:squad/v2.0',)),
    'cmrc2018': Published('answers', measures=('f1', 'exact'), cut='second', script='cmrc'),
    'drcd': Published('answers', measures=('f1', 'exact'), cut='second', script='cmrc'),
}
# Zellers et al. 2018; Lai et al. 2017 (all its schools); Sun et al. 2019 and 2020; Talmor et al. 2019; Bisk et al.
# 2020. Where a row is too long it is the passage that loses its end.
CHOICE = {
    'swag': Published('choice', cut='first'),
    'race': Published('choice', cut='first', data=('tfds:race/high', 'tfds:race/middle'), splits=('dev',)),
    'dream': Published('choice', cut='first'),
    'c3': Published('choice', cut='first'),
    'commonsenseqa': Published('choice', Columns('question.stem|question', label='label|answerKey',
                                                 choices='choices|question.choices'), cut='first'),
    'piqa': Published('choice', Columns('goal|question', label='label'), cut='first', data=('tfds:piqa',)),
}
# What every machine has, for trials: `tasks.embedded`.
# Reimers and Gurevych 2019, section 3.1 (SNLI and MultiNLI; STS-B); Gao et al. 2021, A: without labels a million
# sentences of Wikipedia, which TFDS has not, with labels the pairs of both. All are measured on STS-B.
STS_DEV = ('tfds:glue/stsb:validation',)
SNLI = ('tfds:snli', 'tfds:glue/mnli')
VECTORS = {
    'sbert_nli': Published('embedding', Columns(label=LABEL), RELATIONS, ('spearman',), data=SNLI, measured=STS_DEV),
    'sbert_sts': Published('embedding', measures=('spearman',), data=('tfds:glue/stsb',)),
    'simcse': Published('embedding', measures=('spearman',), measured=STS_DEV),
    'simcse_nli': Published('embedding', Columns(label=LABEL), RELATIONS, ('spearman',), data=SNLI, measured=STS_DEV),
}
EMBEDDED = {
    'embedded_classification': Published('classification', data=('embedded:classification',), splits=('dev',)),
    'embedded_tagging': Published('tagging', measures=('entities',), data=('embedded:tagging',), splits=('dev',)),
    'embedded_answers': Published('answers', measures=('f1', 'exact'), cut='second', data=('embedded:answers',),
                                  splits=('dev',)),
    'embedded_embedding': Published('embedding', measures=('spearman',), data=('embedded:embedding',),
                                    measured=('embedded:similarity:dev',)),
    'embedded_choice': Published('choice', cut='first', data=('embedded:choice',), splits=('dev',)),
}
TASKS: dict[str, Published] = {
    **GLUE, **SUPERGLUE, **SICK, **CHINESE, **TAGGING, **ANSWERS, **CHOICE, **VECTORS, **EMBEDDED}
