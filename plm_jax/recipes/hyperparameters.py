"""Published fine-tuning hyperparameters per family and task, as data with their sources.

    published_hyperparameters('rte', 'roberta')['peak']    2e-05

Where a family's authors state nothing for a task, theirs for its kind are used, and BERT's where
there are none. GLUE rows have 128 tokens here for RoBERTa, ALBERT and BART too. Their authors
truncate at 512, which few rows reach.
"""
from collections.abc import Mapping
from typing import Any

from plm_jax.tasks.registry import TASKS

Hyperparameters = Mapping[str, Any]


def schedule_rows(
    rows: tuple[tuple[str, float, int, int, int], ...]) -> dict[str, Hyperparameters]:
  """Convert rows of (task, peak learning rate, steps, warmup steps, batch size)."""
  return {task: {'peak': peak, 'steps': steps, 'warmup': warmup, 'batch': batch}
          for task, peak, steps, warmup, batch in rows}


# Devlin et al. 2019, A.3, and google-research/bert's optimization.py; 2e-5 of the ranges there.
BERT: Hyperparameters = {
    'peak': 2e-5, 'epochs': 3.0, 'batch': 32, 'length': 128, 'warmup': 0.1, 'schedule': 'bert',
    'weight_decay': 0.01, 'exempt': ('bias', 'scale'), 'b1': 0.9, 'b2': 0.999, 'eps': 1e-6,
    'bias_correction': False, 'clip': 1.0, 'layer_decay': 1.0}
KIND_SETTINGS: Mapping[str, Hyperparameters] = {
    # bert README, SQuAD 1.1
    'answers': {'peak': 3e-5, 'epochs': 2.0, 'batch': 12, 'length': 384, 'stride': 128},
    'tagging': {'peak': 5e-5},  # transformers 4 examples/flax/token-classification
    'choice': {'batch': 16},  # Devlin et al. 2019, section 4.4: SWAG
}
# CLUE's run_c3.py; DREAM's passages are read in the same way.
READING: Hyperparameters = {'epochs': 8.0, 'length': 512}
# sentence-transformers, examples/training/sts/training_stsbenchmark.py and nli/training_nli.py, for
# models of all families and sizes: torch's AdamW as `fit` sets it (SentenceTransformer.py), warmup
# of a tenth.
SBERT: Hyperparameters = {**BERT, 'schedule': 'linear', 'bias_correction': True, 'eps': 1e-8}
# princeton-nlp/SimCSE: run_unsup_example.sh, run_sup_example.sh and the table of its README; the
# rest are the defaults of transformers' Trainer. Evaluated every 125 steps.
SIMCSE: Hyperparameters = {
    **SBERT, 'batch': 512, 'length': 32, 'warmup': 0.0, 'weight_decay': 0.0, 'epochs': 1.0}
# (task, whether RoBERTa, whether large) -> batch size, peak learning rate, evaluations per epoch
SIMCSES: Mapping[tuple[str, bool, bool], tuple[int, float, float]] = {
    ('simcse', False, False): (64, 3e-5, 125.0), ('simcse', False, True): (64, 1e-5, 125.0),
    ('simcse', True, False): (512, 1e-5, 16.0), ('simcse', True, True): (512, 3e-5, 16.0),
    ('simcse_nli', False, False): (512, 5e-5, 4.0), ('simcse_nli', True, False): (512, 5e-5, 4.0),
    ('simcse_nli', False, True): (512, 1e-5, 4.0), ('simcse_nli', True, True): (512, 1e-5, 4.0)}
# McGill-NLP/llm2vec@312adcfb, train_configs/simcse/Sheared-Llama.json; the rate falls by 4%.
LLM2VEC: Hyperparameters = {
    **{name: x for name, x in SIMCSE.items() if name != 'epochs'}, 'peak': 3e-5, 'batch': 128,
    'length': 128, 'steps': 1000, 'schedule': 'constant', 'evaluations': 8.0}
# Khattab and Zaharia 2020, section 4.1, and README of stanford-futuredata/ColBERT, whose optimizer
# has no weight decay and clips at 2; the number of steps of ColBERTv2 is the code's default.
COLBERTS: Mapping[str, Hyperparameters] = {
    'colbert': {'peak': 3e-6, 'steps': 200_000, 'warmup': 0.0, 'schedule': 'constant'},
    'colbertv2': {'peak': 1e-5, 'steps': 500_000, 'warmup': 20_000}}
LONG: Hyperparameters = {'length': 256}  # passages of BoolQ
BERTS: Mapping[str, Hyperparameters] = {
    # transformers 4 examples/flax/text-classification: 88.97 F1, which 3 do not reach
    'mrpc': {'epochs': 5.0},
    'boolq': LONG, 'c3': READING, 'dream': READING, 'race': {'length': 512},
    # 649453932/Bert-Chinese-Text-Classification-Pytorch, models/bert.py
    'thucnews': {'peak': 5e-5, 'batch': 128, 'length': 32},
    # Cui et al. 2019 (whole word masking for Chinese BERT), table 2, from memory
    'chnsenticorp': {'batch': 64, 'length': 256},
    'cmrc2018': {'batch': 64, 'length': 512}, 'drcd': {'batch': 64, 'length': 512},
    'sbert_nli': {'batch': 16, 'epochs': 1.0}, 'sbert_sts': {'batch': 16, 'epochs': 4.0},
    'embedded_answers': {'length': 192, 'stride': 64},
}

# fairseq's Adam: bias correction, weight decay of all parameters, no gradient clipping; linear
# decay after the warmup.
FAIRSEQ: Hyperparameters = {
    'schedule': 'linear', 'exempt': (), 'b2': 0.98, 'bias_correction': True, 'clip': 0.0,
    'warmup': 0.06}
# fairseq examples/roberta/README.glue.md: learning rate and batch size; QQP's warmup is a quarter
# of the steps.
ROBERTA: Mapping[str, Hyperparameters] = {
    'mnli': {'peak': 1e-5, 'batch': 32}, 'qnli': {'peak': 1e-5, 'batch': 32},
    'qqp': {'peak': 1e-5, 'batch': 32, 'warmup': 0.25}, 'sst2': {'peak': 1e-5, 'batch': 32},
    'mrpc': {'peak': 1e-5, 'batch': 16}, 'cola': {'peak': 1e-5, 'batch': 16},
    'rte': {'peak': 2e-5, 'batch': 16}, 'stsb': {'peak': 2e-5, 'batch': 16}}
# Liu et al. 2019, table 10, from memory
ROBERTA_ANSWERS: Hyperparameters = {
    'peak': 1.5e-5, 'batch': 48, 'epochs': 2.0, 'weight_decay': 0.01, 'length': 512}
# microsoft/MPNet, MPNet/README.squad.md; its README.glue.md has RoBERTa's values
MPNET_ANSWERS: Hyperparameters = {**ROBERTA_ANSWERS, 'peak': 2e-5}
ROBERTA_RACE: Hyperparameters = {
    'peak': 1e-5, 'batch': 16, 'epochs': 4.0, 'weight_decay': 0.1, 'length': 512}

# Lan et al. 2020, table 14: learning rate, steps, warmup steps, batch size; WNLI, SQuAD and RACE
# from memory.
ALBERT = schedule_rows((
    ('cola', 1e-5, 5336, 320, 16), ('stsb', 2e-5, 3598, 214, 16), ('sst2', 1e-5, 20935, 1256, 32),
    ('mnli', 3e-5, 10000, 1000, 128), ('qnli', 1e-5, 33112, 1986, 32),
    ('qqp', 5e-5, 14000, 1000, 128), ('rte', 3e-5, 800, 200, 32), ('mrpc', 2e-5, 800, 200, 32),
    ('wnli', 2e-5, 2000, 250, 16), ('squad', 5e-5, 3649, 365, 48),
    ('squad_v2', 3e-5, 8144, 814, 48), ('race', 1e-5, 12000, 1000, 32)))
ALBERT['squad_v2'] = {**ALBERT['squad_v2'], 'length': 512}
# The learning rate is its README's for version 2; it is 2e-5 for version 1.
ALBERT['race'] = {**ALBERT['race'], 'length': 512}

# google-research/electra configure_finetuning.py; the schedule is in its model/optimization.py.
ELECTRA: Hyperparameters = {
    'peak': 1e-4, 'epochs': 3.0, 'batch': 32, 'schedule': 'electra', 'layer_decay': 0.8}
ELECTRAS: Mapping[str, Hyperparameters] = {'rte': {'epochs': 10.0}, 'stsb': {'epochs': 10.0}}
ELECTRA_KINDS: Mapping[str, Hyperparameters] = {
    'answers': {'epochs': 2.0, 'length': 512}, 'tagging': {'length': 256}}

# microsoft/DeBERTa experiments/glue/*.sh, experiments/ner/ner.sh and superglue/copa.sh: learning
# rate, epochs, batch size, warmup (steps, or a share), and dropout of the classifier
# (cls_drop_out); lengths by task. DeBERTa/optims/args.py has the optimizer, which has no bias
# correction.
DEBERTA_LENGTHS = {
    'cola': 64, 'mnli': 256, 'qnli': 512, 'qqp': 320, 'rte': 320, 'copa': 136, 'conll2003': 512}
DEBERTA = {
    'base': {
        'cola': (2e-5, 6, 32, 100, 0.15), 'mnli': (3e-5, 3, 64, 1000, 0.1),
        'mrpc': (2e-5, 6, 32, 50, 0.15), 'qnli': (2e-5, 4, 32, 500, 0.15),
        'qqp': (2e-5, 8, 64, 500, 0.15), 'rte': (2e-5, 6, 32, 100, 0.2),
        'sst2': (2e-5, 6, 32, 500, 0.15), 'stsb': (2e-5, 6, 32, 100, 0.15),
        'conll2003': (2e-5, 15, 16, 0.1, 0.0), 'copa': (1e-5, 3, 32, 50, 0.1)},
    'large': {
        'cola': (7e-6, 6, 32, 100, 0.15), 'mnli': (1e-5, 3, 64, 1000, 0.2),
        'mrpc': (1e-5, 6, 32, 50, 0.15), 'qnli': (1e-5, 4, 32, 500, 0.15),
        'qqp': (1e-5, 8, 64, 500, 0.15), 'rte': (1e-5, 6, 32, 50, 0.2),
        'sst2': (1e-5, 6, 32, 500, 0.15), 'stsb': (7e-6, 4, 32, 100, 0.15),
        'conll2003': (1e-5, 15, 16, 0.1, 0.0), 'copa': (5e-6, 4, 16, 30, 0.1)},
    'xlarge': {
        'cola': (5e-6, 8, 32, 100, 0.2), 'mnli': (5e-6, 3, 64, 1000, 0.3),
        'mrpc': (7e-6, 8, 32, 50, 0.3), 'qnli': (7e-6, 4, 32, 500, 0.2),
        'qqp': (7e-6, 8, 64, 500, 0.2), 'rte': (5e-6, 6, 48, 50, 0.2),
        'sst2': (3e-6, 6, 32, 500, 0.2), 'stsb': (7e-6, 4, 32, 100, 0.2),
        'conll2003': (7e-6, 15, 16, 0.1, 0.0), 'copa': (3e-6, 4, 24, 30, 0.1)},
    'v2-xlarge': {
        'cola': (3e-6, 8, 32, 100, 0.2), 'mnli': (4e-6, 3, 64, 1000, 0.25),
        'mrpc': (3.5e-6, 6, 32, 50, 0.2), 'qnli': (4e-6, 4, 64, 500, 0.2),
        'qqp': (4e-6, 10, 64, 1000, 0.2), 'rte': (4e-6, 6, 48, 50, 0.2),
        'sst2': (4e-6, 4, 32, 500, 0.2), 'stsb': (4e-6, 4, 32, 100, 0.2),
        'conll2003': (4e-6, 15, 16, 0.1, 0.0), 'copa': (2e-6, 4, 24, 30, 0.1)},
    'v2-xxlarge': {
        'cola': (2.5e-6, 10, 32, 100, 0.2), 'mnli': (3e-6, 3, 64, 1000, 0.3),
        'mrpc': (2e-6, 6, 32, 50, 0.2), 'qnli': (3e-6, 4, 64, 500, 0.2),
        'qqp': (3e-6, 10, 64, 1000, 0.2), 'rte': (3e-6, 6, 48, 50, 0.2),
        'sst2': (3e-6, 4, 32, 500, 0.2), 'stsb': (3e-6, 4, 32, 100, 0.2),
        'conll2003': (2.5e-6, 15, 16, 0.1, 0.0), 'copa': (1e-6, 8, 24, 30, 0.1)},
    'v3-xsmall': {'mnli': (4.5e-5, 3, 64, 1000, 0.1)},
    'v3-small': {'mnli': (4.5e-5, 3, 64, 1500, 0.2)},
    'v3-base': {'mnli': (1.5e-5, 3, 64, 1000, 0.1)},
    'v3-large': {
        'cola': (5.5e-6, 10, 32, 50, 0.1), 'mnli': (7e-6, 2, 64, 500, 0.3),
        'mrpc': (6e-6, 6, 32, 50, 0.2), 'qnli': (7e-6, 6, 64, 200, 0.2),
        'qqp': (1e-5, 6, 64, 1000, 0.2), 'rte': (1e-5, 6, 32, 50, 0.3),
        'sst2': (6e-6, 8, 32, 500, 0.1), 'stsb': (7e-6, 4, 32, 50, 0.1),
        'conll2003': (9e-6, 10, 16, 10, 0.0)}}
# Tasks that versions 1 and 2 start from MNLI, following RoBERTa (README, note 1; `init=$init-mnli`
# in the scripts). Version 3 does not.
FROM_MNLI = ('rte', 'stsb', 'mrpc', 'copa')

# zihangdai/xlnet: scripts/tpu_squad_large.sh, gpu_squad_base.sh, tpu_race_large_bsz32.sh, README
# (STS-B). MNLI, and the layer-wise decay of SQuAD, from Yang et al. 2019, A.4.2, from memory.
# Without weight decay, its model_utils.py uses TensorFlow's Adam, which has bias correction.
XLNET: Hyperparameters = {'schedule': 'linear'}
PLAIN: Hyperparameters = {'weight_decay': 0.0, 'bias_correction': True}
XLNETS: Mapping[str, Hyperparameters] = {
    'mnli': {'peak': 2e-5, 'steps': 10_000, 'warmup': 1000, 'batch': 128},
    'stsb': {'peak': 5e-5, 'steps': 1200, 'warmup': 120, 'batch': 32, 'eps': 1e-8, **PLAIN},
    'race': {
        'peak': 2e-5, 'steps': 12_000, 'warmup': 1000, 'batch': 32, 'length': 512, **PLAIN}}
XLNET_ANSWERS = {
    'base': {'peak': 2e-5, 'steps': 12_000, 'warmup': 1000, 'batch': 24, 'length': 512,
             'layer_decay': 0.75},
    'large': {'peak': 3e-5, 'steps': 8000, 'warmup': 1000, 'batch': 48, 'length': 512,
              'layer_decay': 0.75}}

# facebookresearch/SpanBERT README.
SPANBERT: Mapping[str, Hyperparameters] = {
    'answers': {'peak': 2e-5, 'epochs': 4.0, 'batch': 32, 'length': 512},
    'classification': {'epochs': 10.0}, 'regression': {'epochs': 10.0}}

# fairseq examples/bart/README.glue.md: learning rate, steps, warmup steps, batch size.
BART = schedule_rows((
    ('mnli', 5e-6, 30968, 1858, 128), ('qnli', 1e-5, 33112, 1986, 32),
    ('qqp', 1e-5, 113272, 6796, 32), ('rte', 1e-5, 1018, 61, 32), ('sst2', 5e-6, 5233, 314, 128),
    ('mrpc', 2e-5, 1148, 68, 64), ('cola', 2e-5, 1334, 80, 64), ('stsb', 2e-5, 1799, 107, 32)))

# Radford et al. 2018, section 4.1. None are published for GPT-2 and later, which use these.
GPT: Hyperparameters = {
    'peak': 6.25e-5, 'epochs': 3.0, 'batch': 32, 'warmup': 0.002, 'schedule': 'linear',
    'bias_correction': True, 'eps': 1e-8}

# ltgoslo/gpt-bert, evaluation/GLUE/run.py, which sets learning rate, epochs and batch size by task:
# AdamW of all parameters, without clipping.
GPT_BERT: Hyperparameters = {
    'peak': 1e-4, 'epochs': 10.0, 'batch': 16, 'length': 512, 'warmup': 0.06, 'schedule': 'cosine',
    'floor': 0.1, 'weight_decay': 0.01, 'exempt': (), 'bias_correction': True, 'eps': 1e-8,
    'clip': 0.0}
GPT_BERTS: Mapping[str, Hyperparameters] = {
    task: {'epochs': 3.0, 'batch': 32} for task in ('mnli', 'qnli', 'qqp')}

# The authors' answer in issue 3 of Nicolas-BZRD/EuroBERT: the best rate for XNLI of the sizes 210M
# and 610M (2.1B: 2.8e-5), in at most 10,000 steps with early stopping.
EUROBERT: Hyperparameters = {
    'peak': 3.6e-5, 'batch': 32, 'warmup': 0.1, 'schedule': 'linear', 'weight_decay': 0.1,
    'b2': 0.95, 'eps': 1e-5, 'bias_correction': True}

# AllenNLP's training_config ner_elmo and sst_5_elmo, from memory: Adam with a constant learning
# rate; fewer epochs here.
ELMO: Hyperparameters = {
    'peak': 1e-3, 'epochs': 25.0, 'batch': 64, 'length': 256, 'warmup': 0.0,
    'schedule': 'constant', 'weight_decay': 0.0, 'bias_correction': True, 'eps': 1e-8, 'clip': 5.0}


def published_hyperparameters(task: str, family: str = 'bert', size: str = '') -> dict[str, Any]:
  """Return the published hyperparameters of a task and a model family.

  Args:
    task: name in `tasks.registry`.
    family: a model_type of transformers, or spanbert.
    size: 'base', 'large', 'v3-large' and so on; empty: base.

  Returns:
    Fields of OptimConfig (peak, schedule, weight_decay, exempt, b1, b2, eps, bias_correction,
    clip), and `epochs` or `steps`; `batch` in examples; `length` in tokens; `warmup` (a share below
    1, otherwise steps); `layer_decay` (layer-wise learning-rate decay, 1.0: none); `stride` for
    extractive QA; `head_dropout` if it is not the model's; `start`, the task whose fine-tuned model
    the authors start from, if it is not a pre-trained one.

  Raises:
    KeyError: the task is not in the registry.
  """
  kind = TASKS[task].kind
  if kind == 'embedding':  # published with their task, whatever the family
    return dict(sentence_embedding(task, family, size))
  found = {**BERT, **KIND_SETTINGS.get(kind, {}), **BERTS.get(task, {})}
  if family == 'bert' and kind == 'answers' and 'large' in size:
    found['batch'] = 24  # bert README
  if family in FAMILY_HYPERPARAMETERS:
    own = FAMILY_HYPERPARAMETERS[family](task, kind, size)
    found |= own
    if 'steps' in own:
      del found['epochs']
  return found


def sentence_embedding(task: str, family: str, size: str) -> Hyperparameters:
  """Return the hyperparameters of sentence embeddings, published for BERT and RoBERTa alike."""
  if task in COLBERTS:
    found = {**SBERT, 'length': 180, 'weight_decay': 0.0, 'clip': 2.0, **COLBERTS[task]}
    del found['epochs']
    return found
  if task == 'llm2vec':
    return LLM2VEC
  if task not in ('simcse', 'simcse_nli'):
    return {**SBERT, 'batch': 32, **BERTS.get(task, {})}
  batch, peak, evaluations = SIMCSES[task, 'roberta' in family, 'large' in size]
  epochs = 3.0 if task == 'simcse_nli' else 1.0
  return {**SIMCSE, 'batch': batch, 'peak': peak, 'evaluations': evaluations, 'epochs': epochs}


def roberta(task: str, kind: str, size: str) -> Hyperparameters:
  """Return RoBERTa's hyperparameters."""
  if task in ROBERTA:
    return {**FAIRSEQ, 'epochs': 10.0, 'weight_decay': 0.1, **ROBERTA[task]}
  if kind == 'answers':
    return {**FAIRSEQ, **ROBERTA_ANSWERS}
  if task == 'race':
    return {**FAIRSEQ, **ROBERTA_RACE}
  return FAIRSEQ


def mpnet(task: str, kind: str, size: str) -> Hyperparameters:
  """Return MPNet's hyperparameters, which are RoBERTa's except for extractive QA."""
  return {**FAIRSEQ, **MPNET_ANSWERS} if kind == 'answers' else roberta(task, kind, size)


def albert(task: str, kind: str, size: str) -> Hyperparameters:
  """Return ALBERT's hyperparameters; its optimizer is BERT's."""
  return ALBERT.get(task, {})


def electra(task: str, kind: str, size: str) -> Hyperparameters:
  """Return ELECTRA's hyperparameters."""
  large = {'peak': 5e-5, 'layer_decay': 0.9} if 'large' in size else {}
  return {**ELECTRA, **ELECTRA_KINDS.get(kind, {}), **ELECTRAS.get(task, {}), **large}


def deberta(task: str, kind: str, size: str) -> Hyperparameters:
  """Return DeBERTa's hyperparameters.

  A size without values for the task gets those of base or large, at its own learning rate for MNLI.
  """
  exact = DEBERTA.get(size, {})
  large = 'v3-large' if 'v3' in size else 'large'
  reference = large if 'large' in size else 'base'
  values = exact.get(task) or DEBERTA[reference].get(task)
  if not values:
    return {}
  peak, epochs, batch, warmup, dropout = values
  if exact and task not in exact:
    peak = exact['mnli'][0]
  found = {'peak': peak, 'epochs': float(epochs), 'batch': batch, 'warmup': warmup,
           'head_dropout': dropout}
  if task in DEBERTA_LENGTHS:
    found['length'] = DEBERTA_LENGTHS[task]
  if task in FROM_MNLI and 'v3' not in size:
    found['start'] = 'mnli'
  return found


def deberta_v2(task: str, kind: str, size: str) -> Hyperparameters:
  """Return the hyperparameters of DeBERTa's versions 2 and 3, which have the same model_type."""
  if size.startswith('v2'):
    return deberta(task, kind, size)
  return deberta(task, kind, f'v3-{size.removeprefix("v3-") or "base"}')


def xlnet(task: str, kind: str, size: str) -> Hyperparameters:
  """Return XLNet's hyperparameters."""
  reference = 'large' if 'large' in size else 'base'
  answers = XLNET_ANSWERS[reference] if kind == 'answers' else {}
  return {**XLNET, **answers, **XLNETS.get(task, {})}


def spanbert(task: str, kind: str, size: str) -> Hyperparameters:
  """Return SpanBERT's hyperparameters."""
  return SPANBERT.get(kind, {})


def bart(task: str, kind: str, size: str) -> Hyperparameters:
  """Return BART's hyperparameters."""
  return {**FAIRSEQ, 'eps': 1e-8, **BART[task]} if task in BART else {}


def gpt(task: str, kind: str, size: str) -> Hyperparameters:
  """Return GPT's hyperparameters."""
  return GPT if kind != 'answers' else {}


def gpt_bert(task: str, kind: str, size: str) -> Hyperparameters:
  """Return GPT-BERT's hyperparameters."""
  is_known = kind in ('classification', 'regression')
  return {**GPT_BERT, **GPT_BERTS.get(task, {})} if is_known else {}


def eurobert(task: str, kind: str, size: str) -> Hyperparameters:
  """Return EuroBERT's hyperparameters."""
  return EUROBERT if kind in ('classification', 'regression') else {}


def elmo(task: str, kind: str, size: str) -> Hyperparameters:
  """Return the hyperparameters of tasks on an ELMo."""
  return ELMO if kind == 'tagging' else {**ELMO, 'epochs': 10.0}


FAMILY_HYPERPARAMETERS = {
    'roberta': roberta, 'xlm-roberta': roberta, 'mpnet': mpnet, 'albert': albert,
    'electra': electra, 'deberta': deberta, 'deberta-v2': deberta_v2, 'xlnet': xlnet,
    'spanbert': spanbert, 'bart': bart, 'mbart': bart, 'openai-gpt': gpt, 'gpt2': gpt,
    'gptbert': gpt_bert, 'eurobert': eurobert, 'elmo': elmo}
