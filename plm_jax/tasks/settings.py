"""Published settings of fine-tuning, a family and a task, as data with their sources.

    settings('rte', 'roberta')['peak']    2e-05

Where a family's authors say nothing of a task, theirs for its kind are taken, and BERT's where there are none. Rows of
GLUE are 128 tokens here for RoBERTa, ALBERT and BART too, whose authors cut at 512 what seldom has so many.
"""
from collections.abc import Mapping
from typing import Any

from plm_jax.tasks.table import TASKS

Values = Mapping[str, Any]

# Devlin et al. 2019, A.3, and google-research/bert's optimization.py, with 2e-5 of the ranges there.
BERT: Values = {
    'peak': 2e-5, 'epochs': 3.0, 'batch': 32, 'length': 128, 'warmup': 0.1, 'schedule': 'bert', 'weight_decay': 0.01,
    'exempt': ('bias', 'scale'), 'b1': 0.9, 'b2': 0.999, 'eps': 1e-6, 'bias_correction': False, 'clip': 1.0,
    'layer_decay': 1.0}
KINDS: Mapping[str, Values] = {
    'answers': {'peak': 3e-5, 'epochs': 2.0, 'batch': 12, 'length': 384, 'stride': 128},  # bert README, SQuAD 1.1
    'tagging': {'peak': 5e-5},  # transformers 4 examples/flax/token-classification
    'choice': {'batch': 16},  # Devlin et al. 2019, section 4.4: SWAG
}
READING: Values = {'epochs': 8.0, 'length': 512}  # CLUE's run_c3.py, by which DREAM's passages are read as well
# Reimers and Gurevych 2019, section 3.1; UKPLab/sentence-transformers examples/training/nli and sts. README of
# princeton-nlp/SimCSE, BERT base; measured every 125 steps.
SBERT: Values = {'batch': 16, 'length': 128}
SIMCSE: Values = {'batch': 64, 'peak': 3e-5, 'length': 32, 'warmup': 0.0, 'weight_decay': 0.0, 'epochs': 1.0,
                  'schedule': 'linear', 'bias_correction': True, 'eps': 1e-8}
LONG: Values = {'length': 256}  # passages of BoolQ
BERTS: Mapping[str, Values] = {
    'mrpc': {'epochs': 5.0},  # transformers 4 examples/flax/text-classification: 88.97 F1, which 3 do not reach
    'boolq': LONG, 'c3': READING, 'dream': READING, 'race': {'length': 512},
    # 649453932/Bert-Chinese-Text-Classification-Pytorch, models/bert.py
    'thucnews': {'peak': 5e-5, 'batch': 128, 'length': 32},
    # Cui et al. 2019 (whole word masking for Chinese BERT), table 2, from memory
    'chnsenticorp': {'batch': 64, 'length': 256},
    'cmrc2018': {'batch': 64, 'length': 512}, 'drcd': {'batch': 64, 'length': 512},
    'sbert_nli': {**SBERT, 'epochs': 1.0}, 'sbert_sts': {**SBERT, 'epochs': 4.0},
    'simcse': {**SIMCSE, 'evaluations': 125.0},
    'simcse_nli': {**SIMCSE, 'batch': 512, 'peak': 5e-5, 'epochs': 3.0, 'evaluations': 4.0},
    **{f'embedded_{kind}': {'length': 128} for kind in ('classification', 'tagging', 'choice', 'embedding')},
    'embedded_answers': {'length': 192, 'stride': 64},
}

# fairseq's Adam: corrected means, decay of all parameters, no clipping; a line behind the warmup.
FAIRSEQ: Values = {'schedule': 'linear', 'exempt': (), 'b2': 0.98, 'bias_correction': True, 'clip': 0.0, 'warmup': 0.06}
# fairseq examples/roberta/README.glue.md: rate and batch; QQP's warmup is a quarter of the steps.
ROBERTA = {
    **{task: {'peak': 1e-5, 'batch': 32} for task in ('mnli', 'qnli', 'qqp', 'sst2')},
    **{task: {'peak': 1e-5, 'batch': 16} for task in ('mrpc', 'cola')},
    **{task: {'peak': 2e-5, 'batch': 16} for task in ('rte', 'stsb')}}
ROBERTA['qqp'] = {**ROBERTA['qqp'], 'warmup': 0.25}
# Liu et al. 2019, table 10, from memory
ROBERTA_ANSWERS: Values = {'peak': 1.5e-5, 'batch': 48, 'epochs': 2.0, 'weight_decay': 0.01, 'length': 512}
ROBERTA_RACE: Values = {'peak': 1e-5, 'batch': 16, 'epochs': 4.0, 'weight_decay': 0.1, 'length': 512}

# Lan et al. 2020, table 14: rate, steps, warmup in steps, batch; WNLI, SQuAD and RACE from memory.
ALBERT = {
    task: {'peak': peak, 'steps': steps, 'warmup': warmup, 'batch': batch} for task, peak, steps, warmup, batch in (
        ('cola', 1e-5, 5336, 320, 16), ('stsb', 2e-5, 3598, 214, 16), ('sst2', 1e-5, 20935, 1256, 32),
        ('mnli', 3e-5, 10000, 1000, 128), ('qnli', 1e-5, 33112, 1986, 32), ('qqp', 5e-5, 14000, 1000, 128),
        ('rte', 3e-5, 800, 200, 32), ('mrpc', 2e-5, 800, 200, 32), ('wnli', 2e-5, 2000, 250, 16),
        ('squad', 5e-5, 3649, 365, 48), ('squad_v2', 3e-5, 8144, 814, 48), ('race', 1e-5, 12000, 1000, 32))}
ALBERT['squad_v2'] = {**ALBERT['squad_v2'], 'length': 512}
ALBERT['race'] = {**ALBERT['race'], 'length': 512}  # the rate is its README's for version 2, 2e-5 for version 1

# google-research/electra configure_finetuning.py; the schedule is in its model/optimization.py.
ELECTRA: Values = {'peak': 1e-4, 'epochs': 3.0, 'batch': 32, 'schedule': 'electra', 'layer_decay': 0.8}
ELECTRAS: Mapping[str, Values] = {'rte': {'epochs': 10.0}, 'stsb': {'epochs': 10.0}}
ELECTRA_KINDS: Mapping[str, Values] = {'answers': {'epochs': 2.0, 'length': 512}, 'tagging': {'length': 256}}

# microsoft/DeBERTa experiments/glue/*.sh, experiments/ner/ner.sh and superglue/copa.sh: rate, epochs, batch, warmup in
# steps, or as a share; lengths by task; DeBERTa/optims/args.py has the optimizer, whose means are not corrected.
DEBERTA_LENGTHS = {'cola': 64, 'mnli': 256, 'qnli': 512, 'qqp': 320, 'rte': 320, 'copa': 136, 'conll2003': 512}
DEBERTA = {
    'base': {
        'cola': (2e-5, 6, 32, 100), 'mnli': (3e-5, 3, 64, 1000), 'mrpc': (2e-5, 6, 32, 50), 'qnli': (2e-5, 4, 32, 500),
        'qqp': (2e-5, 8, 64, 500), 'rte': (2e-5, 6, 32, 100), 'sst2': (2e-5, 6, 32, 500), 'stsb': (2e-5, 6, 32, 100),
        'conll2003': (2e-5, 15, 16, 0.1), 'copa': (1e-5, 3, 32, 50)},
    'large': {
        'cola': (7e-6, 6, 32, 100), 'mnli': (1e-5, 3, 64, 1000), 'mrpc': (1e-5, 6, 32, 50), 'qnli': (1e-5, 4, 32, 500),
        'qqp': (1e-5, 8, 64, 500), 'rte': (1e-5, 6, 32, 50), 'sst2': (1e-5, 6, 32, 500), 'stsb': (7e-6, 4, 32, 100),
        'conll2003': (1e-5, 15, 16, 0.1), 'copa': (5e-6, 4, 16, 30)},
    'v3-xsmall': {'mnli': (4.5e-5, 3, 64, 1000)}, 'v3-small': {'mnli': (4.5e-5, 3, 64, 1500)},
    'v3-base': {'mnli': (1.5e-5, 3, 64, 1000)},
    'v3-large': {
        'cola': (5.5e-6, 10, 32, 50), 'mnli': (7e-6, 2, 64, 500), 'mrpc': (6e-6, 6, 32, 50), 'qnli': (7e-6, 6, 64, 200),
        'qqp': (1e-5, 6, 64, 1000), 'rte': (1e-5, 6, 32, 50), 'sst2': (6e-6, 8, 32, 500), 'stsb': (7e-6, 4, 32, 50)}}
FROM_MNLI = ('rte', 'stsb', 'mrpc', 'copa')  # DeBERTa README, note 1, following RoBERTa

# zihangdai/xlnet: scripts/tpu_squad_large.sh, gpu_squad_base.sh, tpu_race_large_bsz32.sh, README (STS-B); MNLI, and the
# decay by layers of SQuAD, from Yang et al. 2019, A.4.2, from memory. Where no weights decay its model_utils.py takes
# TensorFlow's Adam, whose means are corrected.
XLNET: Values = {'schedule': 'linear'}
PLAIN: Values = {'weight_decay': 0.0, 'bias_correction': True}
XLNETS: Mapping[str, Values] = {
    'mnli': {'peak': 2e-5, 'steps': 10_000, 'warmup': 1000, 'batch': 128},
    'stsb': {'peak': 5e-5, 'steps': 1200, 'warmup': 120, 'batch': 32, 'eps': 1e-8, **PLAIN},
    'race': {'peak': 2e-5, 'steps': 12_000, 'warmup': 1000, 'batch': 32, 'length': 512, **PLAIN}}
XLNET_ANSWERS = {
    'base': {'peak': 2e-5, 'steps': 12_000, 'warmup': 1000, 'batch': 24, 'length': 512, 'layer_decay': 0.75},
    'large': {'peak': 3e-5, 'steps': 8000, 'warmup': 1000, 'batch': 48, 'length': 512, 'layer_decay': 0.75}}

# facebookresearch/SpanBERT README.
SPANBERT: Mapping[str, Values] = {
    'answers': {'peak': 2e-5, 'epochs': 4.0, 'batch': 32, 'length': 512}, 'classification': {'epochs': 10.0},
    'regression': {'epochs': 10.0}}

# fairseq examples/bart/README.glue.md: rate, steps, warmup in steps, batch.
BART = {
    task: {'peak': peak, 'steps': steps, 'warmup': warmup, 'batch': batch} for task, peak, steps, warmup, batch in (
        ('mnli', 5e-6, 30968, 1858, 128), ('qnli', 1e-5, 33112, 1986, 32), ('qqp', 1e-5, 113272, 6796, 32),
        ('rte', 1e-5, 1018, 61, 32), ('sst2', 5e-6, 5233, 314, 128), ('mrpc', 2e-5, 1148, 68, 64),
        ('cola', 2e-5, 1334, 80, 64), ('stsb', 2e-5, 1799, 107, 32))}

# Radford et al. 2018, section 4.1; for GPT-2 and later none are published, and these are taken.
GPT: Values = {'peak': 6.25e-5, 'epochs': 3.0, 'batch': 32, 'warmup': 0.002, 'schedule': 'linear',
               'bias_correction': True, 'eps': 1e-8}


# ltgoslo/gpt-bert, evaluation/GLUE/run.py, whose clipping is not named
GPT_BERT: Values = {'peak': 3e-5, 'epochs': 10.0, 'batch': 16, 'warmup': 0.06, 'schedule': 'cosine', 'floor': 0.1,
                    'weight_decay': 0.01, 'bias_correction': True, 'eps': 1e-8}

# AllenNLP's training_config ner_elmo and sst_5_elmo, from memory: Adam, its rate flat; epochs are fewer here.
ELMO: Values = {'peak': 1e-3, 'epochs': 25.0, 'batch': 64, 'length': 256, 'warmup': 0.0, 'schedule': 'constant',
                'weight_decay': 0.0, 'bias_correction': True, 'eps': 1e-8, 'clip': 5.0}


def settings(task: str, family: str = 'bert', size: str = '') -> dict[str, Any]:
  """Returns the settings of a task of `tasks.table` for a family, which is a model_type of transformers or spanbert.

  size: what tells sizes apart, 'base', 'large', 'v3-large'; empty: base. Keys are fields of OptimConfig (peak,
    schedule, weight_decay, exempt, b1, b2, eps, bias_correction, clip), and `epochs` or `steps`, `batch` in examples,
    `length` in tokens, `warmup` (a share below 1, otherwise steps), `layer_decay` (1.0: none), of answers `stride`, and
    `start` where a run of another task is what it begins with.

  Raises KeyError for a task that is not in the table.
  """
  kind = TASKS[task].kind
  found = {**BERT, **KINDS.get(kind, {}), **BERTS.get(task, {})}
  if family == 'bert' and kind == 'answers' and 'large' in size:
    found['batch'] = 24  # bert README
  own = OWN[family](task, kind, size) if family in OWN else {}
  found |= own
  if 'steps' in own:
    del found['epochs']
  return found


def roberta(task: str, kind: str, size: str) -> Values:
  """Returns RoBERTa's."""
  del size
  if task in ROBERTA:
    return {**FAIRSEQ, 'epochs': 10.0, 'weight_decay': 0.1, **ROBERTA[task]}
  own = ROBERTA_ANSWERS if kind == 'answers' else ROBERTA_RACE if task == 'race' else {}
  return {**FAIRSEQ, **own}


def albert(task: str, kind: str, size: str) -> Values:
  """Returns ALBERT's, whose optimizer is BERT's."""
  del kind, size
  return ALBERT.get(task, {})


def electra(task: str, kind: str, size: str) -> Values:
  """Returns ELECTRA's."""
  large = {'peak': 5e-5, 'layer_decay': 0.9} if 'large' in size else {}
  return {**ELECTRA, **ELECTRA_KINDS.get(kind, {}), **ELECTRAS.get(task, {}), **large}


def deberta(task: str, kind: str, size: str) -> Values:
  """Returns DeBERTa's; of a size without settings for the task the base's or large's, at that size's rate for MNLI."""
  del kind
  exact = DEBERTA.get(size, {})
  nearest = DEBERTA['v3-large' if 'v3' in size and 'large' in size else 'large' if 'large' in size else 'base']
  values = exact.get(task) or nearest.get(task)
  if not values:
    return {}
  peak = exact['mnli'][0] if exact and task not in exact else values[0]
  found = {'peak': peak, 'epochs': float(values[1]), 'batch': values[2], 'warmup': values[3]}
  if task in DEBERTA_LENGTHS:
    found['length'] = DEBERTA_LENGTHS[task]
  return {**found, 'start': 'mnli'} if task in FROM_MNLI else found


def deberta_v2(task: str, kind: str, size: str) -> Values:
  """Returns those of DeBERTa's third version, which has the model_type of the second."""
  named = f'v3-{size.removeprefix("v3-") or "base"}'
  return deberta(task, kind, named if named in DEBERTA else size)


def xlnet(task: str, kind: str, size: str) -> Values:
  """Returns XLNet's."""
  answers = XLNET_ANSWERS['large' if 'large' in size else 'base'] if kind == 'answers' else {}
  return {**XLNET, **answers, **XLNETS.get(task, {})}


def spanbert(task: str, kind: str, size: str) -> Values:
  """Returns SpanBERT's."""
  del task, size
  return SPANBERT.get(kind, {})


def bart(task: str, kind: str, size: str) -> Values:
  """Returns BART's."""
  del kind, size
  return {**FAIRSEQ, 'eps': 1e-8, **BART[task]} if task in BART else {}


def gpt(task: str, kind: str, size: str) -> Values:
  """Returns GPT's."""
  del task, size
  return GPT if kind != 'answers' else {}


def gpt_bert(task: str, kind: str, size: str) -> Values:
  """Returns GPT-BERT's."""
  del task, size
  return GPT_BERT if kind in ('classification', 'regression') else {}


def elmo(task: str, kind: str, size: str) -> Values:
  """Returns those of what reads an ELMo's features."""
  del task, size
  return ELMO if kind == 'tagging' else {**ELMO, 'epochs': 10.0}


OWN = {
    'roberta': roberta, 'xlm-roberta': roberta, 'albert': albert, 'electra': electra, 'deberta': deberta,
    'deberta-v2': deberta_v2, 'xlnet': xlnet, 'spanbert': spanbert, 'bart': bart, 'mbart': bart, 'openai-gpt': gpt,
    'gpt2': gpt, 'gptbert': gpt_bert, 'elmo': elmo}
