"""Registry of downstream tasks: columns, class names, metrics, sources, as data.

    TASKS['mnli'].labels    ('entailment', 'neutral', 'contradiction')

Class names are in the order of their indices in the published files, so that a transformers model
for the task has the same id2label. For GLUE and SuperGLUE that is the order of TFDS and of Hugging
Face's datasets; for CLUE, of the latter.
"""
import dataclasses
from typing import Literal

from plm_jax.metrics.embeddings import RETRIEVAL_METRICS
from plm_jax.metrics.multilabel import MULTILABEL_METRICS
from plm_jax.metrics.ranking import RANKING_METRICS
from plm_jax.sources.row_readers import Columns
from plm_jax.tasks.input_formats import Truncation


@dataclasses.dataclass(frozen=True)
class TaskSpec:
  """A published task."""

  kind: str
  """kind of task, a name in `tasks.kinds`"""
  columns: Columns = Columns()
  """columns that differ from the default names"""
  labels: tuple[str, ...] = ()
  """class names by index; empty: those of the training examples, sorted"""
  measures: tuple[str, ...] = ('accuracy',)
  """metrics; the first selects the best checkpoint. Token classification: 'entities' or 'accuracy',
  its `TaggingTask.metric`; extractive QA: 'f1' and 'exact', as the scripts of SQuAD and CMRC
  compute them"""
  data: tuple[str, ...] = ()
  """TFDS sources, without their splits; empty: TFDS does not have the task"""
  splits: tuple[str, ...] = ('validation',)
  """splits for evaluation; MNLI has two"""
  dev_sources: tuple[str, ...] = ()
  """sources for evaluation, if they are of other data"""
  cut: Truncation = 'longest'
  """text that is truncated if two are too long for a row"""
  unanswerable: bool = False
  """whether a question may have no answer"""
  script: Literal['squad', 'cmrc'] = 'squad'
  """official script whose metrics are computed"""

  @property
  def train(self) -> tuple[str, ...]:
    """Sources of training examples."""
    return tuple(f'{name}:train' for name in self.data)

  @property
  def dev(self) -> tuple[str, ...]:
    """Development sets, each evaluated separately."""
    if self.dev_sources:
      return self.dev_sources
    return tuple(f'{name}:{split}' for split in self.splits for name in self.data)


LABEL = 'label|gold_label'
ENTAILED = ('entailment', 'not_entailment')
RELATIONS = ('entailment', 'neutral', 'contradiction')
PREMISE = Columns('premise|sentence1', 'hypothesis|sentence2', LABEL)
SENTENCES = Columns('sentence1', 'sentence2', LABEL)
SENTENCE = Columns('sentence|text', label=LABEL)
SCORED = Columns('sentence1', 'sentence2', 'label|score')
CORRELATIONS = ('pearson', 'spearman')
ENTITIES = ('O', 'B-PER', 'I-PER', 'B-ORG', 'I-ORG', 'B-LOC', 'I-LOC', 'B-MISC', 'I-MISC')

# Wang et al. 2019, GLUE, table 1. Of two metrics, the mean is the task's score there; the first
# selects checkpoints here.
GLUE = {
    'cola': TaskSpec(
        'classification', SENTENCE, ('unacceptable', 'acceptable'), ('matthews', 'accuracy'),
        data=('tfds:glue/cola',)),
    'sst2': TaskSpec(
        'classification', SENTENCE, ('negative', 'positive'), data=('tfds:glue/sst2',)),
    'mrpc': TaskSpec(
        'classification', Columns('sentence1|#1 String', 'sentence2|#2 String', 'label|Quality'),
        ('not_equivalent', 'equivalent'), ('f1', 'accuracy'), data=('tfds:glue/mrpc',)),
    'stsb': TaskSpec('regression', SCORED, (), CORRELATIONS, data=('tfds:glue/stsb',)),
    'qqp': TaskSpec(
        'classification', Columns('question1', 'question2', 'label|is_duplicate'),
        ('not_duplicate', 'duplicate'), ('f1', 'accuracy'), data=('tfds:glue/qqp',)),
    'mnli': TaskSpec(
        'classification', PREMISE, RELATIONS, data=('tfds:glue/mnli',),
        splits=('validation_matched', 'validation_mismatched')),
    'qnli': TaskSpec(
        'classification', Columns('question|sentence1', 'sentence|sentence2', LABEL), ENTAILED,
        data=('tfds:glue/qnli',)),
    'rte': TaskSpec('classification', PREMISE, ENTAILED, data=('tfds:glue/rte',)),
    'wnli': TaskSpec('classification', SENTENCES, ENTAILED[::-1], data=('tfds:glue/wnli',)),
}
# Wang et al. 2019, SuperGLUE, table 1. BoolQ's passage is what may be truncated.
SUPERGLUE = {
    'boolq': TaskSpec(
        'classification', Columns('question', 'passage', 'label|answer'), ('False', 'True'),
        cut='second', data=('tfds:super_glue/boolq',)),
    'cb': TaskSpec(
        'classification', PREMISE, ('entailment', 'contradiction', 'neutral'),
        ('accuracy', 'macro_f1'), data=('tfds:super_glue/cb',)),
    'copa': TaskSpec(
        'choice', Columns('premise', 'question', 'label', 'choice1,choice2'),
        data=('tfds:super_glue/copa',)),
    'wic': TaskSpec(
        'classification', Columns('word+sentence1', 'sentence2', 'label'), ('False', 'True'),
        data=('tfds:super_glue/wic',)),
}
# SemEval 2014, task 1 (Marelli et al. 2014): entailment, and relatedness from 1 to 5.
SICK = {
    'sick': TaskSpec(
        'classification', Columns('sentence1|sentence_A', 'sentence2|sentence_B',
                                  'entailment|entailment_label|entailment_judgment'), RELATIONS),
    'sick_relatedness': TaskSpec(
        'regression', Columns('sentence1|sentence_A', 'sentence2|sentence_B',
                              'relatedness|relatedness_score'), (), CORRELATIONS),
}
# Xu et al. 2020, CLUE, table 1, with the names of the Hugging Face data set; TNEWS has no 105 and
# 111. Xu et al. 2021, FewCLUE: BUSTM and EPRSTMT. THUCNews as
# 649453932/Chinese-Text-Classification-Pytorch has it, data/class.txt.
CHINESE = {
    'tnews': TaskSpec(
        'classification', SENTENCE,
        tuple(str(n) for n in range(100, 117) if n not in (105, 111))),
    'afqmc': TaskSpec('classification', SENTENCES, ('0', '1')),
    'ocnli': TaskSpec('classification', SENTENCES, ('neutral', 'entailment', 'contradiction')),
    'bustm': TaskSpec('classification', SENTENCES, ('0', '1')),
    'eprstmt': TaskSpec('classification', SENTENCE, ('Negative', 'Positive')),
    'chnsenticorp': TaskSpec(
        'classification', Columns('sentence|text_a|text', label=LABEL), ('negative', 'positive')),
    'thucnews': TaskSpec('classification', SENTENCE, (
        'finance', 'realty', 'stocks', 'education', 'science', 'society', 'politics', 'sports',
        'game', 'entertainment')),
    'stsb_zh': TaskSpec('regression', SCORED, (), CORRELATIONS),
}
# Demszky et al. 2020, table 1, in the order of the authors' emotions.txt; TFDS has a column for
# each emotion.
EMOTIONS = (
    'admiration', 'amusement', 'anger', 'annoyance', 'approval', 'caring', 'confusion', 'curiosity',
    'desire', 'disappointment', 'disapproval', 'disgust', 'embarrassment', 'excitement', 'fear',
    'gratitude', 'grief', 'joy', 'love', 'nervousness', 'optimism', 'pride', 'realization',
    'relief', 'remorse', 'sadness', 'surprise', 'neutral')
SEVERAL_LABELS = {
    'goemotions': TaskSpec(
        'multilabel', Columns('comment_text|text', label=','.join(EMOTIONS)), EMOTIONS,
        ('macro_f1', 'micro_f1', 'weighted_f1', 'average_precision', 'subset_accuracy'),
        data=('tfds:goemotions',))}
# WikiGold, BTC and Weibo publish no order of names. Universal Dependencies have 17 parts of speech
# (UPOS).
TAGGING = {
    'conll2003': TaskSpec(
        'tagging', Columns('words|tokens', label='tags|ner|ner_tags'), ENTITIES, ('entities',),
        data=('tfds:conll2003',), splits=('dev',)),
    'wikigold': TaskSpec('tagging', labels=ENTITIES, measures=('entities',)),
    'btc': TaskSpec('tagging', labels=ENTITIES[:7], measures=('entities',)),
    'weibo': TaskSpec('tagging', measures=('entities',)),
    'msra': TaskSpec('tagging', labels=ENTITIES[:7], measures=('entities',)),
    'pos': TaskSpec(
        'tagging', Columns('words|tokens', label='tags|upos'), (
            'ADJ', 'ADP', 'ADV', 'AUX', 'CCONJ', 'DET', 'INTJ', 'NOUN', 'NUM', 'PART', 'PRON',
            'PROPN', 'PUNCT', 'SCONJ', 'SYM', 'VERB', 'X'),
        data=('tfds:universal_dependencies/en_ewt',), splits=('dev',)),
}
# Rajpurkar et al. 2016 and 2018; Cui et al. 2019; Shao et al. 2018, evaluated as CMRC is.
ANSWERS = {
    'squad': TaskSpec('answers', measures=('f1', 'exact'), cut='second', data=('tfds:squad',)),
    'squad_v2': TaskSpec(
        'answers', measures=('f1', 'exact'), cut='second', unanswerable=True,
        data=('tfds:squad/v2.0',)),
    'cmrc2018': TaskSpec('answers', measures=('f1', 'exact'), cut='second', script='cmrc'),
    'drcd': TaskSpec('answers', measures=('f1', 'exact'), cut='second', script='cmrc'),
}
# Zellers et al. 2018; Lai et al. 2017 (all its schools); Sun et al. 2019 and 2020; Talmor et al.
# 2019; Bisk et al. 2020. If a row is too long, the passage is truncated.
CHOICE = {
    'swag': TaskSpec('choice', cut='first'),
    'race': TaskSpec(
        'choice', cut='first', data=('tfds:race/high', 'tfds:race/middle'), splits=('dev',)),
    'dream': TaskSpec('choice', cut='first'),
    'c3': TaskSpec('choice', cut='first'),
    'commonsenseqa': TaskSpec(
        'choice', Columns('question.stem|question', label='label|answerKey',
                          choices='choices|question.choices'), cut='first'),
    'piqa': TaskSpec(
        'choice', Columns('goal|question', label='label'), cut='first', data=('tfds:piqa',)),
}
# Reimers and Gurevych 2019, section 3.1 (SNLI and MultiNLI; STS-B); Gao et al. 2021, A: a million
# sentences of Wikipedia, which TFDS does not have, or the pairs of both. All are evaluated on
# STS-B.
STS_DEV = ('tfds:glue/stsb:validation',)
SNLI = ('tfds:snli', 'tfds:glue/mnli')
VECTORS = {
    'sbert_nli': TaskSpec('embedding', Columns(label=LABEL), RELATIONS, ('spearman',), data=SNLI,
                          dev_sources=STS_DEV),
    'sbert_sts': TaskSpec('embedding', measures=('spearman',), data=('tfds:glue/stsb',)),
    'simcse': TaskSpec('embedding', measures=('spearman',), dev_sources=STS_DEV),
    'llm2vec': TaskSpec('embedding', measures=('spearman',), dev_sources=STS_DEV),
    'simcse_nli': TaskSpec('embedding', Columns(label=LABEL), RELATIONS, ('spearman',), data=SNLI,
                           dev_sources=STS_DEV),
    'colbert': TaskSpec('embedding', measures=RETRIEVAL_METRICS),
    'colbertv2': TaskSpec('embedding', measures=RETRIEVAL_METRICS),
}
# Built-in examples of kinds of task and of SPLADE, for trials: `sources.builtin_tasks`.
VECTOR_EXAMPLES = TaskSpec(
    'embedding', measures=('spearman',), data=('embedded:embedding',),
    dev_sources=('embedded:similarity:dev',))
EMBEDDED = {
    'embedded_classification': TaskSpec(
        'classification', data=('embedded:classification',), splits=('dev',)),
    'embedded_multilabel': TaskSpec(
        'multilabel', measures=MULTILABEL_METRICS, data=('embedded:multilabel',), splits=('dev',)),
    'embedded_tagging': TaskSpec(
        'tagging', measures=('entities',), data=('embedded:tagging',), splits=('dev',)),
    'embedded_answers': TaskSpec(
        'answers', measures=('f1', 'exact'), cut='second', data=('embedded:answers',),
        splits=('dev',)),
    'embedded_embedding': VECTOR_EXAMPLES, 'embedded_splade': VECTOR_EXAMPLES,
    'embedded_rerank': TaskSpec(
        'rerank', measures=RANKING_METRICS, cut='second', data=('embedded:rerank',),
        splits=('dev',)),
    'embedded_choice': TaskSpec(
        'choice', cut='first', data=('embedded:choice',), splits=('dev',)),
}
TASKS: dict[str, TaskSpec] = {
    **GLUE, **SUPERGLUE, **SICK, **CHINESE, **SEVERAL_LABELS, **TAGGING, **ANSWERS, **CHOICE,
    **VECTORS, **EMBEDDED}
